"""The list of samples that a training left out."""

from __future__ import annotations

from hotlap.engine.bad_samples import BAD_SAMPLES, BadSamples
from hotlap.engine.samples import Skipped


def test_a_name_that_is_no_text_is_listed_like_others(tmp_path):
    """Names of files may hold any bytes; one of them ended the training."""
    found = BadSamples(tmp_path)
    found.add("training data", [Skipped(index=3, where="c\udcff.png", reason="it is empty\tand short")])
    found.write()
    listed = (tmp_path / BAD_SAMPLES).read_text("utf-8")
    assert listed == "training data\t3\tc\\udcff.png\tit is empty and short\n"
