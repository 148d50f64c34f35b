"""What runs a scan on which platform: primitives of JAX, lowered differently for each.

    forward(inputs, *tensors, initial_state, keep) -> outputs, final state, kept states
    backward(grad_outputs, grad_final, kept states, inputs, *tensors, keep) -> gradients

States are kept before every `keep`-th step, in one flat array, none if `keep` is 0. The gradients
are those of all arguments of `forward`. The tensors of "coffee" are its weights, stacked
`(W, D, n)` as λ, w, C and then b and w_γ where there are any, and the mask if there is one; those
of "selective" are Δ, λ, B and C.
"""

import functools

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from keras_coffee.backend.jax import cpu_kernels, gpu_kernels, portable


def _primitive(name):
    """A primitive whose definition is the function `name` of `portable`."""
    definition = getattr(portable, name)
    primitive = Primitive(f"keras_coffee_{name}")
    primitive.multiple_results = True

    @functools.partial(jax.jit, static_argnames=("options",))
    def evaluate(*tensors, options):
        return primitive.bind(*tensors, **dict(options))

    @primitive.def_impl
    def _(*tensors, **options):
        return evaluate(*tensors, options=tuple(options.items()))

    @primitive.def_abstract_eval
    def _(*tensors, **options):
        shapes = jax.eval_shape(functools.partial(definition, **options), *tensors)
        return [jax.core.ShapedArray(x.shape, x.dtype) for x in shapes]

    def differentiate(tensors, tangents, **options):
        tangents = [ad.instantiate_zeros(x) for x in tangents]
        return jax.jvp(functools.partial(definition, **options), tensors, tangents)

    def batch(tensors, axes, **options):
        mapped = jax.vmap(functools.partial(definition, **options), axes)
        results = mapped(*tensors)
        return results, [0] * len(results)

    ad.primitive_jvps[primitive] = differentiate
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(definition))
    for platform, kernels in (("cpu", cpu_kernels), ("cuda", gpu_kernels)):
        kernel = getattr(kernels, name)
        rule = functools.partial(_lower, definition, kernels.is_available, kernel)
        mlir.register_lowering(primitive, rule, platform=platform)
    return primitive


def _lower(definition, is_available, kernel, context, *tensors, **options):
    is_chosen = implementation(context) == "kernel" and is_available()
    return mlir.lower_fun(kernel if is_chosen else definition)(context, *tensors, **options)


def implementation(context):
    """`"kernel"` or `"portable"`, for the program that is lowered.

    A program that is exported must run where this package is not, and XLA can't divide a kernel
    among devices.
    """
    module = context.module_context
    is_exported = module.lowering_parameters.for_export
    return "portable" if is_exported or module.axis_context.num_devices > 1 else "kernel"


forward = {name: _primitive(f"{name}_forward") for name in ("coffee", "selective")}
backward = {name: _primitive(f"{name}_backward") for name in ("coffee", "selective")}
