"""Runs a whole model over a stream, one step or one block at a time."""

from keras_coffee.streaming.stream import Stream as Stream
