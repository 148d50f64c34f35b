import inspect

import keras
import numpy as np
import pytest
from keras import ops
from scans import precision

from keras_coffee import initializers
from keras_coffee.initializers import (
    OrthonormalSymbols,
    RingDecay,
    RingPhase,
    S4DReal,
    ScaledNormal,
    StandardNormal,
    StepSizes,
)

RANDOM = [StandardNormal, ScaledNormal, StepSizes, OrthonormalSymbols, RingDecay, RingPhase]


def draw(initializer, shape=(9, 16), dtype=None):
    return ops.convert_to_numpy(initializer(shape, dtype=dtype))


def test_standard_normal_has_mean_zero_and_variance_one():
    values = draw(StandardNormal(seed=0), (400, 500))
    # Five standard errors of each estimate from 200,000 draws.
    assert abs(values.mean()) < 5 / np.sqrt(values.size)
    assert abs(values.var() - 1) < 5 * np.sqrt(2 / values.size)
    assert abs((values**4).mean() - 3) < 5 * np.sqrt(96 / values.size)


@pytest.mark.parametrize(("axes", "terms"), [((-1,), 500), ((0,), 400), ((0, 1), 200_000)])
def test_scaled_normal_gives_a_sum_of_the_standard_deviation_gain(axes, terms):
    values = draw(ScaledNormal(0.5, axes, seed=0), (400, 500))
    scaled = values * terms**0.5 / 0.5
    assert abs(scaled.mean()) < 5 / np.sqrt(values.size)
    assert abs(scaled.var() - 1) < 5 * np.sqrt(2 / values.size)


@pytest.mark.parametrize(("smallest", "largest"), [(0.001, 0.1), (1e-6, 1e-5), (0.5, 50.0)])
def test_step_sizes_are_log_uniform_after_softplus(smallest, largest):
    values = draw(StepSizes(smallest, largest, seed=0), (200_000,)).astype("float64")
    delta = np.logaddexp(0, values)
    assert_uniform(np.log(delta), np.log(smallest), np.log(largest))


@pytest.mark.parametrize(
    "sizes", [(0.1, 0.1), (0.0, 0.1), (-1.0, 0.1), (0.1, np.nan), (0.1, np.inf)]
)
def test_step_sizes_need_two_positive_ones(sizes):
    message = (
        f"need 0 < smallest < largest < ∞, received smallest={sizes[0]} and largest={sizes[1]}"
    )
    with pytest.raises(ValueError, match=message):
        StepSizes(*sizes)


def test_forgetting_spreads_what_is_kept_of_a_state():
    values = draw(initializers.get("forgetting"), (200_000,))
    assert_uniform(values, -1.0, -0.02)
    values = draw(initializers.get("log_forgetting"), (200_000,))
    assert_uniform(values, np.log(0.05), np.log(2.0))


def test_s4d_real_gives_the_rates_minus_one_to_minus_n():
    values = draw(S4DReal(), (3, 8))
    np.testing.assert_allclose(-np.exp(values), np.tile(-np.arange(1.0, 9.0), (3, 1)), rtol=1e-6)


def test_s4d_real_refuses_a_scalar():
    with pytest.raises(ValueError, match=r"received the shape \(\).*at least one axis"):
        S4DReal()(())


def test_scaled_normal_needs_its_axes():
    with pytest.raises(ValueError, match=r"needs the axes \(0, -1\), received the shape \(\)"):
        ScaledNormal(axes=(0, -1))(())
    assert ScaledNormal()((2, 0)).shape == (2, 0)


@pytest.mark.parametrize(("r_min", "r_max"), [(0.0, 1.0), (0.5, 0.6), (0.9, 0.999), (0.99, 1.0)])
def test_ring_decay_spreads_radii_uniformly_in_area(r_min, r_max):
    radius = np.exp(-np.exp(draw(RingDecay(r_min, r_max, seed=0), (200_000,)).astype("float64")))
    assert_uniform(radius**2, r_min**2, r_max**2)
    assert radius.max() < 1


@pytest.mark.parametrize("max_phase", [2 * np.pi, 0.01])
def test_ring_phase_spreads_phases_evenly(max_phase):
    phase = np.exp(draw(RingPhase(max_phase, seed=0), (200_000,)).astype("float64"))
    assert_uniform(phase, 0, max_phase)


def assert_uniform(values, low, high):
    x = np.sort((values - low) / (high - low))
    assert x[0] > -1e-5
    assert x[-1] < 1 + 1e-5
    # The largest distance of the two distributions; beyond this with probability 1e-6.
    distance = np.abs(x - (np.arange(x.size) + 0.5) / x.size).max()
    assert distance < 2.7 / x.size**0.5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("initializer", [RingDecay(), RingDecay(0.999, 1.0), RingPhase(1e-3)])
def test_a_ring_is_finite_and_stable_in_every_dtype(initializer, dtype):
    # In bfloat16 a radius above 0.998 would be 1.
    with precision(dtype):
        values = initializer((10_000,), dtype=dtype)
        assert keras.backend.standardize_dtype(values.dtype) == dtype
        values = ops.convert_to_numpy(ops.cast(values, "float32")).astype("float64")
    assert np.isfinite(values).all()
    if isinstance(initializer, RingDecay):
        assert (np.exp(-np.exp(values)) < 1).all()


@pytest.mark.parametrize("radii", [(0.5, 0.5), (0.9, 0.1), (-0.1, 0.5), (0.5, 1.1), (0, np.nan)])
def test_a_ring_needs_two_radii(radii):
    message = f"needs 0 ≤ r_min < r_max ≤ 1, received r_min={radii[0]} and r_max={radii[1]}"
    with pytest.raises(ValueError, match=message):
        RingDecay(*radii)


@pytest.mark.parametrize("phase", [0, -1.0, np.nan, np.inf])
def test_the_largest_phase_is_positive(phase):
    with pytest.raises(
        ValueError, match=f"`max_phase` must be a positive number, received {phase}"
    ):
        RingPhase(phase)


@pytest.mark.parametrize("shape", [(9, 16), (5, 5), (1, 4)], ids=str)
def test_orthonormal_symbols_are_orthonormal_where_the_features_suffice(shape):
    table = draw(OrthonormalSymbols(seed=1), shape)
    assert table.shape == shape
    np.testing.assert_allclose(table @ table.T, np.eye(shape[0]), atol=1e-6)


@pytest.mark.parametrize("shape", [(9, 4), (9, 2), (4, 1)], ids=str)
def test_orthonormal_symbols_have_orthonormal_columns_otherwise(shape):
    table = draw(OrthonormalSymbols(seed=1), shape)
    assert table.shape == shape
    np.testing.assert_allclose(table.T @ table, np.eye(shape[1]), atol=1e-6)


@pytest.mark.parametrize("shape", [(9, 16), (9, 4)], ids=str)
def test_orthonormal_symbols_come_from_the_qr_of_uniform_entries(shape):
    symbols, dim = shape
    entries = keras.random.uniform((max(dim, symbols), symbols), seed=3)
    basis, _ = np.linalg.qr(ops.convert_to_numpy(entries).astype("float64"))
    expected = basis.T[:, :dim]
    table = draw(OrthonormalSymbols(seed=3), shape)
    # A decomposition is unique up to the sign of each column of Q, here a row.
    signs = np.sign(np.sum(table * expected, axis=1, keepdims=True))
    np.testing.assert_allclose(table, signs * expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_orthonormal_symbols_are_computed_in_float32_at_least(dtype):
    table = OrthonormalSymbols(seed=0)((9, 16), dtype=dtype)
    assert keras.backend.standardize_dtype(table.dtype) == dtype
    exact = draw(OrthonormalSymbols(seed=0), dtype="float32")
    rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-23}[dtype]
    actual = ops.convert_to_numpy(ops.cast(table, "float32"))
    np.testing.assert_allclose(actual, exact, atol=rounding)


@pytest.mark.parametrize("shape", [(16,), (3, 9, 16), ()], ids=str)
def test_orthonormal_symbols_refuse_what_is_no_table(shape):
    with pytest.raises(ValueError, match=r"\(vocabulary_size, dim\); received the shape"):
        OrthonormalSymbols()(shape)


@pytest.mark.parametrize("initializer", RANDOM)
def test_same_seed_same_values(initializer):
    same = initializer(seed=5)
    np.testing.assert_array_equal(draw(same), draw(same))
    np.testing.assert_array_equal(draw(same), draw(initializer(seed=5)))
    assert np.abs(draw(same) - draw(initializer(seed=6))).max() > 0.1


@pytest.mark.parametrize("initializer", RANDOM)
def test_without_a_seed_the_global_one_decides(initializer):
    keras.utils.set_random_seed(11)
    first, second = draw(initializer()), draw(initializer())
    assert np.abs(first - second).max() > 0.1
    keras.utils.set_random_seed(11)
    np.testing.assert_array_equal(draw(initializer()), first)


@pytest.mark.parametrize("initializer", RANDOM)
def test_a_seed_generator_moves_on(initializer):
    moving = initializer(seed=keras.random.SeedGenerator(2))
    first = draw(moving)
    assert np.abs(first - draw(moving)).max() > 0.1
    restored = initializers.get(keras.initializers.serialize(moving))
    np.testing.assert_array_equal(draw(restored), first)


@pytest.mark.parametrize("initializer", RANDOM)
def test_a_seed_must_be_one(initializer):
    with pytest.raises(ValueError, match="`seed` argument should be"):
        initializer(seed="seven")


EACH = [
    *(StandardNormal(seed=4), ScaledNormal(0.5, (0, -1), seed=4), OrthonormalSymbols(4), S4DReal()),
    *(RingDecay(0.5, 0.75, seed=4), RingPhase(0.5, seed=4)),
]


@pytest.mark.parametrize("initializer", EACH)
def test_config_and_clone_draw_the_same(initializer):
    restored = initializers.get(keras.initializers.serialize(initializer))
    assert type(restored) is type(initializer)
    np.testing.assert_array_equal(draw(restored), draw(initializer))
    np.testing.assert_array_equal(draw(initializer.clone()), draw(initializer))


@pytest.mark.parametrize("initializer", EACH)
def test_config_names_only_what_can_be_chosen(initializer):
    chosen = set(inspect.signature(type(initializer)).parameters)
    assert set(initializer.get_config()) == chosen - {"args", "kwargs"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("standard_normal", StandardNormal),
        ("s4d_real", S4DReal),
        ("scaled_normal", ScaledNormal),
        ("orthonormal_symbols", OrthonormalSymbols),
        ("glorot_uniform", keras.initializers.GlorotUniform),
        (S4DReal, S4DReal),
    ],
)
def test_get_finds_names_and_classes(name, kind):
    assert type(initializers.get(name)) is kind


def test_get_passes_on_what_keras_understands():
    def ones(shape, dtype=None):
        return ops.ones(shape, dtype=dtype)

    initializer = StandardNormal()
    assert initializers.get(initializer) is initializer
    assert initializers.get(ones) is ones
    assert initializers.get(None) is None
    np.testing.assert_array_equal(draw(initializers.get(np.eye(3)), (3, 3)), np.eye(3))


@pytest.mark.parametrize("identifier", ["standard_norm", 7])
def test_get_names_what_it_knows(identifier):
    with pytest.raises(ValueError, match=r"Unknown initializer.*s4d_real.*keras\.initializers"):
        initializers.get(identifier)


def test_a_configuration_that_does_not_fit_is_explained():
    config = keras.saving.serialize_keras_object(StepSizes())
    config["config"]["smallest"] = -1
    with pytest.raises(ValueError, match="^Step sizes need .* received smallest=-1"):
        initializers.get(config)
