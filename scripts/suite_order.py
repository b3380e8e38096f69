"""The order of test files, and the processes that run them."""

from xdist.scheduler import LoadFileScheduling

_TOGETHER = ("tests/npu_simulated", "tests/unit/test_house")
"""Beginnings of files that one process runs."""
LONG = (
    "tests/unit/agents/",
    "tests/unit/cluster/test_group_watch",
    "tests/unit/environments/test_sandbox",
    "tests/unit/programs/test_plan",
    "tests/unit/report/test_page_in_browser",
    "tests/unit/rewards/test_processes",
    "tests/unit/rewards/test_scorer",
    "tests/unit/test_ascend_script",
    "tests/unit/test_house",
    "tests/unit/tracking/test_process",
    "tests/unit/trainer/test_conversations",
    "tests/unit/workers/test_broadcast_links",
)
"""Beginnings of files that take 20 to 70 s, mostly by waiting."""


class Files(LoadFileScheduling):
    """Deals out tests by file; files that share what takes long to prepare go to one process.

    Those are processes with simulated NPUs, and parsed sources. pytest-xdist 3.8 has groups for
    this, which have no effect with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return next((each for each in _TOGETHER if file.startswith(each)), file)


def takes_long(file: str) -> bool:
    """Return whether a file takes long and starts first: started last, it would run alone."""
    return file.startswith(LONG)
