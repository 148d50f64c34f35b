"""What runs a recurrence on which platform: primitives of JAX, lowered differently for each.

    forward(*tensors, recurrence, keep) -> outputs, final state, kept states
    backward(grad_outputs, grad_final, kept states, *tensors, recurrence, keep) -> gradients
    linear_forward(decay, inputs, state, reverse) -> states
    linear_backward(grad_states, states, decay, state, reverse) -> gradients

The tensors are sequences, weights and state, in lists as `recurrence.split` makes them. States are
kept before every `keep`-th step, one flat array for each tensor of the state, empty if `keep` is 0;
in the order (chunks, B, ...), except for kernels in Pallas. Gradients are those by all tensors that
can have one.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from keras_coffee.backend.cpu import blocks
from keras_coffee.backend.jax import cpu_kernels, gpu_kernels, portable

# Where each recurrence that has kernels finds them. Everything else runs in JAX's own operations.
KERNELS = {"cpu": cpu_kernels, "cuda": gpu_kernels}


def implementation(context, kernels):
    """`"kernel"` or `"portable"`, for the program that is lowered.

    A program that is exported must run where this package is not, and XLA can't divide a kernel
    among devices.
    """
    module = context.module_context
    is_alone = not module.lowering_parameters.for_export and _devices(module.axis_context) == 1
    return "kernel" if is_alone and kernels.is_available() else "portable"


def _devices(axes):
    """Devices among which XLA divides a program. Under `shard_map` and `pmap` it is divided."""
    if not hasattr(axes, "mesh"):
        return getattr(axes, "num_devices", 1)
    sizes = axes.mesh.shape.items()
    return math.prod(size for axis, size in sizes if axis not in axes.manual_axes)


def usual_keep(recurrence):
    """Steps between two kept states where nobody asks for `recompute`.

    Decided when a program is traced, for the platform that it will most likely run on.
    """
    is_cpu = jax.default_backend() == "cpu" and cpu_kernels.is_available()
    return blocks.KEEP if is_cpu and recurrence.kernel in cpu_kernels.RECURRENCES else 1


def _forward_kernel(kernels, *tensors, recurrence, keep):
    arguments = _arguments(tensors, recurrence)
    return kernels.scan("forward", recurrence.kernel, *arguments, keep=keep, **recurrence.options)


def _backward_kernel(kernels, grad_outputs, grad_final, kept, *tensors, recurrence, keep):
    arguments = grad_outputs, grad_final, kept, *_arguments(tensors, recurrence)[:-1]
    return kernels.scan("backward", recurrence.kernel, *arguments, keep=keep, **recurrence.options)


def _arguments(tensors, recurrence):
    """Sequences, weights and state in the order of a kernel, None where one is absent."""
    sequences, weights, state = recurrence.split(tensors)
    # Kernels take marks in the dtype of everything else.
    sequences = [x.astype(state[0].dtype) if x.dtype == bool else x for x in sequences]
    return [*recurrence.arguments(sequences, weights), *state]


def _linear_forward_kernel(kernels, decay, inputs, state, *, reverse):
    return [kernels.linear_forward(decay, inputs, state, reverse=reverse)]


def _linear_backward_kernel(kernels, *tensors, reverse):
    # Kernels conjugate as PyTorch and TensorFlow do.
    grad_states, *others = tensors
    grads = kernels.linear_backward(jnp.conj(grad_states), *others, reverse=reverse)
    return [jnp.conj(x) for x in grads]


def _primitive(definition, kernel, batch, transformed=None):
    """A primitive with a definition in JAX's own operations, which is what is differentiated.

    Args:
        definition: Maps tensors and options to a list of tensors.
        kernel: The same, with the kernels of a platform as its first argument.
        batch: The rule for `vmap`.
        transformed: What is differentiated instead of the definition, if anything.
    """
    transformed = transformed or definition
    primitive = Primitive(f"keras_coffee_{definition.__name__}")
    primitive.multiple_results = True

    @functools.partial(jax.jit, static_argnames=("options",))
    def evaluate(*tensors, options):
        return primitive.bind(*tensors, **dict(options))

    @primitive.def_impl
    def _(*tensors, **options):
        # The primitive has no eager implementation: compile it even under `disable_jit`.
        with jax.disable_jit(False):
            return evaluate(*tensors, options=tuple(options.items()))

    @primitive.def_abstract_eval
    def _(*tensors, **options):
        shapes = jax.eval_shape(functools.partial(definition, **options), *tensors)
        return [tensors[0].update(shape=x.shape, dtype=x.dtype) for x in shapes]

    def differentiate(tensors, tangents, **options):
        tangents = tuple(ad.instantiate_zeros(x) for x in tangents)
        return jax.jvp(functools.partial(transformed, **options), tuple(tensors), tangents)

    ad.primitive_jvps[primitive] = differentiate
    batching.primitive_batchers[primitive] = functools.partial(batch, primitive)
    mlir.register_lowering(primitive, mlir.lower_fun(definition))
    for platform, kernels in KERNELS.items():
        rule = functools.partial(_lower, definition, kernel, kernels)
        mlir.register_lowering(primitive, rule, platform=platform)
    return primitive


def _lower(definition, kernel, kernels, context, *tensors, **options):
    recurrence = options.get("recurrence")
    has_kernel = recurrence is None or recurrence.kernel in kernels.RECURRENCES
    if has_kernel and implementation(context, kernels) == "kernel":
        definition = functools.partial(kernel, kernels)
    return mlir.lower_fun(definition)(context, *tensors, **options)


def _batch(primitive, tensors, axes, *, recurrence, keep):
    """`vmap`, with the kernels: one longer batch in inference, one call after another in training.

    In training the gradients by the weights are those of each mapped element.
    """
    _, weight_axes, _ = recurrence.split(axes)
    if keep or any(axis is not None for axis in weight_axes):
        return _batch_in_turn(primitive, tensors, axes, recurrence=recurrence, keep=keep)
    size, mapped = _in_front(tensors, axes)
    sequences, _, state = recurrence.split([_folded(x) for x in mapped])
    _, weights, _ = recurrence.split(tensors)
    results = primitive.bind(*sequences, *weights, *state, recurrence=recurrence, keep=keep)
    # Nothing is kept.
    results = [_unfolded(x, size) for x in results[: 1 + recurrence.state_count]]
    kept = [jnp.zeros((size, 0), x.dtype) for x in results[1:]]
    return [*results, *kept], [0] * (len(results) + len(kept))


def _batch_in_turn(primitive, tensors, axes, **options):
    """`vmap` by one call after another."""
    _, mapped = _in_front(tensors, axes)
    results = lax.map(lambda x: primitive.bind(*x, **options), mapped)
    return results, [0] * len(results)


def _batch_linear(primitive, tensors, axes, *, reverse):
    """`vmap` of a linear scan: one longer batch."""
    size, (decay, *others) = _in_front(tensors, axes)
    decay = jnp.broadcast_to(decay, (size, others[0].shape[1], *decay.shape[2:]))
    (states,) = primitive.bind(*map(_folded, (decay, *others)), reverse=reverse)
    return [_unfolded(states, size)], [0]


def _in_front(tensors, axes):
    """How many elements are mapped, and all tensors with their axis in front."""
    pairs = list(zip(tensors, axes, strict=True))
    size = next(x.shape[axis] for x, axis in pairs if axis is not None)
    return size, [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in pairs
    ]


def _folded(x):
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _unfolded(x, size):
    return x.reshape(size, x.shape[0] // size, *x.shape[1:])


def _from_the_start(grad_outputs, *rest, recurrence, keep):
    """The gradients, with the states computed again: a kernel may have kept its own, its way."""
    count = recurrence.state_count
    grad_final, tensors = rest[:count], rest[2 * count :]
    results = portable.forward(*tensors, recurrence=recurrence, keep=keep)
    kept = results[1 + count :]
    return portable.backward(
        grad_outputs, *grad_final, *kept, *tensors, recurrence=recurrence, keep=keep
    )


forward = _primitive(portable.forward, _forward_kernel, _batch)
backward = _primitive(portable.backward, _backward_kernel, _batch_in_turn, _from_the_start)
linear_forward = _primitive(portable.linear_forward, _linear_forward_kernel, _batch_linear)
linear_backward = _primitive(portable.linear_backward, _linear_backward_kernel, _batch_in_turn)
