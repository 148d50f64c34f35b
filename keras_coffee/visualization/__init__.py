"""Plots of a `CoffeeLayer` inside a model: its states, its gates, its decisions.

Not imported with the package, because it needs matplotlib: install the extra `plots`,
keras-coffee[plots], then `from keras_coffee import visualization`.
"""

try:
    import matplotlib as _matplotlib  # noqa: F401
except ImportError as error:
    raise ImportError(
        "keras_coffee.visualization draws with matplotlib, which can't be imported. Install it, "
        "or this package with its extra: keras-coffee[plots]."
    ) from error

from keras_coffee.visualization.decision_regions import (
    plot_decision_regions as plot_decision_regions,
)
from keras_coffee.visualization.gates import plot_gates as plot_gates
from keras_coffee.visualization.state_trajectory import (
    plot_state_trajectory as plot_state_trajectory,
)
