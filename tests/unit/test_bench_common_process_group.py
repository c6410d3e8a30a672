"""What a group of processes holds, and how long it has computed."""

import os
from pathlib import Path

from bench.common.process_group import KIB, TICKS_PER_SECOND, group_bytes, group_cpu_seconds


def add_process(
    proc: Path,
    pid: int,
    group: int,
    pss: int | None,
    command: str = "(python)",
    ticks: tuple[int, int] = (0, 0),
) -> None:
    """Write a process's files as Linux does; `ticks` are those in user and in system mode."""
    folder = proc / str(pid)
    folder.mkdir()
    text = f"{pid} {command} S 1 {group} {group} 0 -1 4194304 7 7 7 7 {ticks[0]} {ticks[1]} 5 5 20 0"
    (folder / "stat").write_text(text, encoding="utf-8")
    if pss is not None:
        (folder / "smaps_rollup").write_text(f"00-ff ---p\nRss: 9 kB\nPss: {pss} kB\n", encoding="utf-8")


def test_all_processes_of_the_group_count_and_no_others(tmp_path: Path) -> None:
    """An engine computes in children of its own; a command may hold spaces and brackets."""
    add_process(tmp_path, 10, 10, 100, ticks=(150, 50))
    add_process(tmp_path, 11, 10, 50, command="(VLLM) Worker)", ticks=(20, 30))
    add_process(tmp_path, 12, 12, 1000, ticks=(999, 999))
    add_process(tmp_path, 13, 10, None)
    (tmp_path / "99").mkdir()

    assert 150 * KIB == group_bytes(10, tmp_path)
    assert 250 / TICKS_PER_SECOND == group_cpu_seconds(10, tmp_path)


def test_this_process_holds_something() -> None:
    """On Linux the real files are read."""
    if Path("/proc/self/smaps_rollup").exists():
        assert group_bytes(os.getpgid(0)) > KIB
