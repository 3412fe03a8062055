"""``hotlap segment predict``: calls the application and prints what came of it."""

from __future__ import annotations

from hotlap.cli.commands import _dry_run, _print_json, _print_text, _silent, _stderr
from hotlap.cli.main import EXIT_INTERRUPTED, complain
from hotlap.cli.options import Request
from hotlap.cli.show import ProgressDoor
from hotlap.records.codec import encode


def run_predict(request: Request) -> int:
    """Prints the outcome; 1 where files had to be skipped."""
    from hotlap.segment.predict_folder import predict_folder

    if request.common.dry_run:
        return _dry_run(request, [])
    try:
        with ProgressDoor(_stderr(), quiet=_silent(request.common)) as door:
            answer = predict_folder(request.resolved.config, door)
    except KeyboardInterrupt:  # it leaves no run behind that could be listed, and has said what is finished
        complain("interrupted")
        return EXIT_INTERRUPTED
    if request.common.json:
        _print_json(encode(answer))
    else:
        _print_text("\n".join(answer.lines()))
    return answer.exit_code
