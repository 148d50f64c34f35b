"""Gradients that cannot be differentiated again."""

import functools

import tensorflow as tf


def differentiable_once(forward, backward, *arguments):
    """Calls `forward(*arguments) -> results, kept`, with `backward` as its gradient.

    `backward(kept, arguments, grads)` returns a gradient for each argument that can have one. What
    is kept is a list of floating-point tensors: integers of the forward pass, even those of a
    transposition or a length, would have to be known when XLA compiles, and when a compiled
    function calls this one, TensorFlow then takes all arguments for constants and compiles again at
    every step.

    Second derivatives raise an error when they are computed. TensorFlow prepares them even if they
    are not needed, for example under a persistent tape, and cannot for loops that XLA compiles; so
    it must not see these.
    """

    @tf.custom_gradient
    def call(*arguments):
        results, kept = forward(*arguments)
        kept = [tf.stop_gradient(x) for x in kept]

        def gradient(*grads):
            results = iter(_never_differentiated(backward, kept, arguments, grads))
            return [next(results) if is_differentiable(x) else None for x in arguments]

        return results, gradient

    return call(*arguments)


def is_differentiable(x):
    return x.dtype.is_floating or x.dtype.is_complex


def moving(tensors):
    """Those that can have a gradient."""
    return [x for x in tensors if is_differentiable(x)]


def second_derivatives(tensors, *grads):
    """What stands for them: it raises when it is computed."""
    if tf.executing_eagerly():
        _refuse()
    grad = next(x for x in grads if x is not None)
    return [_refused(x, grad) if is_differentiable(x) else None for x in tensors]


def _refused(x, grad):
    # Of a gradient, because forward results are not available in some functions. Stateless, it is
    # pruned if it is not needed; XLA cannot compile it, and names it.
    name = "keras_coffee_has_no_second_derivatives_on_tensorflow_nor_forward_mode"
    result = tf.numpy_function(_refuse, [grad], x.dtype, stateful=False, name=name)
    result.set_shape(x.shape)
    return result


def _refuse(*arguments):
    raise NotImplementedError(
        "The scans of keras_coffee have no second derivatives on TensorFlow. Leave out the tape "
        "around the gradient, or use the JAX backend."
    )


def _never_differentiated(function, kept, arguments, grads):
    first, last = len(kept), len(kept) + len(arguments)

    @tf.custom_gradient
    def call(*tensors):
        results = function(tensors[:first], tensors[first:last], tensors[last:])

        return list(results), functools.partial(second_derivatives, tensors)

    results = call(*kept, *arguments, *grads)
    return results if isinstance(results, list | tuple) else [results]
