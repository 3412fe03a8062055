"""Mean and maximum over the channels of each pixel, in one pass over memory."""
