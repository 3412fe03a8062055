"""The interface, asked at random from its own description: whatever comes, no answer is a 500."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("schemathesis", reason="the fuzzer is not installed: pip install schemathesis")
from web_fakes import bright_service, listening

NUM_EXAMPLES = 40


@pytest.mark.slow
def test_no_request_made_from_the_description_breaks_the_service(tmp_path):
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings

    from hotlap.tools.serve.jobs import JobStore

    _, service = bright_service(max_delay_s=0.0)
    store = JobStore(tmp_path / "jobs.sqlite")
    asked = 0
    with listening(service, store) as (host, port):
        address = f"http://{host}:{port}"
        schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
        for result in schema.get_all_operations():
            operation = result.ok()

            @settings(
                max_examples=NUM_EXAMPLES, deadline=None, derandomize=True, database=None,
                phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=operation.as_strategy())
            def ask(case):
                nonlocal asked
                asked += 1
                answer = case.call(base_url=address, timeout=120)  # kernels may have to be compiled
                assert answer.status_code < 500 or answer.status_code in (503, 504), answer.text

            ask()
    store.close()
    assert asked > NUM_EXAMPLES
