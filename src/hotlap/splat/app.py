"""The verbs of the application: each takes its settings and a listener, and gives back what came of it."""

from hotlap.splat.evaluate import evaluate as evaluate
from hotlap.splat.opened import export as export
from hotlap.splat.opened import info as info
from hotlap.splat.photos import from_photos as from_photos
from hotlap.splat.render import render as render
from hotlap.splat.train import train as train
from hotlap.splat.view import view as view
