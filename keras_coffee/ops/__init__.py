"""Recurrences over whole sequences, as functions. One file each."""

from keras_coffee.ops.cell_scan import cell_scan as cell_scan
from keras_coffee.ops.coffee_scan import coffee_scan as coffee_scan
from keras_coffee.ops.linear_scan import linear_scan as linear_scan
from keras_coffee.ops.nonlinear_scan import nonlinear_scan as nonlinear_scan
from keras_coffee.ops.selective_scan import selective_scan as selective_scan
