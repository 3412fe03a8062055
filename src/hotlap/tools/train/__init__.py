"""``train``: an exact, recoverable training, its record and its curves."""

from hotlap.engine.config import TrainConfig as TrainConfig
from hotlap.tools.train.launch import exec_torchrun as exec_torchrun
from hotlap.tools.train.launch import wants_torchrun as wants_torchrun
from hotlap.tools.train.run import preview as preview
from hotlap.tools.train.run import train as train
