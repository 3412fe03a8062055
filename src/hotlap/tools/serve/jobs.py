"""Jobs of many files that survive a restart: kept in SQLite, their results until they are deleted."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.base.errors import StorageError, UnknownName

MAX_TRIES = 3
"""Times that a file is tried when the service, not the file, is at fault."""
BUSY_S = 2.0
"""How long a service that is just ending may keep the file."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, model TEXT NOT NULL, options TEXT NOT NULL, created REAL NOT NULL,
    cancelled INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS files (
    job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE, number INTEGER NOT NULL, name TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting', tries INTEGER NOT NULL DEFAULT 0, body BLOB NOT NULL,
    answer TEXT, error TEXT,
    PRIMARY KEY (job, number)
);
CREATE INDEX IF NOT EXISTS files_by_state ON files (state);
"""


@dataclass(frozen=True)
class Work:
    """One file to run."""

    job: str
    number: int
    name: str
    body: bytes
    model: str
    options: dict[str, Any]
    tries: int


class JobStore:
    """The jobs in one database file; safe to use from several threads, by one service at a time."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()  # a change may end with a look
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=BUSY_S)
            # Two services would run each other's files, also those of models that they do not have.
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA foreign_keys=ON")
            self._db.executescript(_SCHEMA)
            # Whoever was running these is gone.
            self._db.execute("UPDATE files SET state = 'waiting' WHERE state = 'running'")
        except (OSError, sqlite3.Error) as error:
            raise StorageError(
                f"jobs = {str(path)!r} cannot be opened: {error}",
                remedy="Choose another file with --jobs; each service needs its own",
            ) from error

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """All of the changes inside, or none."""
        with self._lock, self._told():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself has ended it where the disk is full
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turns what SQLite says into an error of ours."""
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(
                f"jobs cannot be kept: {error}", remedy="Whoever runs the service must make room on the disk of --jobs"
            ) from error

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._lock, self._told():
            return self._db.execute(query, values).fetchall()

    def add(self, model: str, options: Mapping[str, Any], files: Sequence[tuple[str, bytes]]) -> str:
        """The id of a new job, which is on disk when this returns."""
        job = uuid.uuid4().hex
        with self._changing() as db:
            db.execute("INSERT INTO jobs (id, model, options, created) VALUES (?, ?, ?, ?)",
                       (job, model, json.dumps(dict(options)), time.time()))  # fmt: skip
            rows = [(job, number, name, body) for number, (name, body) in enumerate(files)]
            db.executemany("INSERT INTO files (job, number, name, body) VALUES (?, ?, ?, ?)", rows)
        return job

    def take(self, count: int) -> list[Work]:
        """Up to ``count`` files that wait, oldest job first, marked as running."""
        query = (
            "SELECT f.job, f.number, f.name, f.body, j.model, j.options, f.tries"
            " FROM files f JOIN jobs j ON j.id = f.job WHERE f.state = 'waiting' AND NOT j.cancelled"
            " ORDER BY j.created, f.number LIMIT ?"
        )
        with self._changing() as db:
            found = db.execute(query, (count,)).fetchall()
            keys = [(row[0], row[1]) for row in found]
            db.executemany("UPDATE files SET state = 'running' WHERE job = ? AND number = ?", keys)
        return [
            Work(job, number, name, body, model, json.loads(options), tries)
            for job, number, name, body, model, options, tries in found
        ]

    def finish(self, work: Work, answer: bytes) -> None:
        """Keeps an answer, which is JSON text; the file itself is no longer needed."""
        self._end(work, "done", answer.decode(), None)

    def fail(self, work: Work, error: str, *, again: bool) -> None:
        """Keeps an error, or lets the file wait once more where ``again`` says that it is not to blame."""
        if again and work.tries + 1 < MAX_TRIES:
            self.put_back(work, tried=True)
        else:
            self._end(work, "failed", None, error)

    def put_back(self, work: Work, *, tried: bool = False) -> None:
        """Lets a file wait again."""
        with self._changing() as db:
            db.execute("UPDATE files SET state = 'waiting', tries = tries + ? WHERE job = ? AND number = ?",
                       (int(tried), work.job, work.number))  # fmt: skip

    def _end(self, work: Work, state: str, answer: str | None, error: str | None) -> None:
        # A failed file keeps its body, so that it can be tried again.
        with self._changing() as db:
            db.execute(
                "UPDATE files SET state = ?, answer = ?, error = ?, tries = tries + 1,"
                " body = CASE WHEN ? = 'done' THEN x'' ELSE body END WHERE job = ? AND number = ?",
                (state, answer, error, state, work.job, work.number),
            )

    def cancel(self, job: str) -> None:
        """Lets no more of a job's files begin; those that are done keep their results."""
        self._known(job)
        with self._changing() as db:
            db.execute("UPDATE jobs SET cancelled = 1 WHERE id = ?", (job,))

    def retry(self, job: str) -> dict[str, Any]:
        """Lets what failed or was cancelled wait again; how far the job is at that moment."""
        self._known(job)
        with self._changing() as db:
            db.execute("UPDATE jobs SET cancelled = 0 WHERE id = ?", (job,))
            db.execute("UPDATE files SET state = 'waiting', tries = 0, error = NULL WHERE job = ? AND state = 'failed'",
                       (job,))  # fmt: skip
            return self.status(job)  # still within: a moment later some may have failed again

    def delete(self, job: str) -> None:
        """Forgets a job and its results."""
        self._known(job)
        with self._changing() as db:
            db.execute("DELETE FROM jobs WHERE id = ?", (job,))

    def _known(self, job: str) -> Any:
        found = self._rows("SELECT id, model, created, cancelled FROM jobs WHERE id = ?", job)
        if not found:
            raise UnknownName(f"unknown job {job!r}", remedy="GET /api/v1/jobs lists them")
        return found[0]

    def status(self, job: str) -> dict[str, Any]:
        """How far a job is, as JSON."""
        _, model, created, cancelled = self._known(job)
        counts = dict(self._rows("SELECT state, count(*) FROM files WHERE job = ? GROUP BY state", job))
        done, failed = counts.get("done", 0), counts.get("failed", 0)
        total, running = sum(counts.values()), counts.get("running", 0)
        over = done + failed == total
        state = "done" if over else "cancelled" if cancelled and not running else "running"
        return {"id": job, "model": model, "created": created, "state": state, "total": total, "done": done,
                "failed": failed, "running": running}  # fmt: skip

    def jobs(self) -> list[dict[str, Any]]:
        """Every job, newest first."""
        return [self.status(row[0]) for row in self._rows("SELECT id FROM jobs ORDER BY created DESC LIMIT 1000")]

    def results(self, job: str) -> list[dict[str, Any]]:
        """What is known of each file, in the order given."""
        self._known(job)
        rows = self._rows("SELECT name, state, answer, error FROM files WHERE job = ? ORDER BY number", job)
        return [
            {"filename": name, "state": state, "answer": json.loads(answer) if answer else None, "error": error}
            for name, state, answer, error in rows
        ]

    def close(self) -> None:
        with self._lock:
            self._db.close()
