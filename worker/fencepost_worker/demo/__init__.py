"""`fencepost demo`: the main job on embedded services, with redeliveries, a crash and a zombie, and its verdict.

`tickets.py` is the world outside, which knows nothing of Fencepost; `tools.py` is what the workers are given;
`wire.py` is a plain Kafka client; `stage.py` starts and ends the processes; `story.py` is the plot; `verdict.py` is the
judge; `report.py` does the talking.
"""

from __future__ import annotations


def run_demo(*, json: bool = False) -> int:
    """Run the demo → 0 when every promise held, else 1. `json`: one object on stdout, the story on stderr.

    Raises:
        EmbeddedUnavailable: one line with the cure.
    """
    from fencepost_worker.demo.story import perform  # noqa: PLC0415 - workers import this package for its tools alone

    return perform(json=json)
