"""Samples nobody gave a seed for, asked by plain HTTP while the server is killed: a promise that was given is kept, and told the same each time."""

from __future__ import annotations

import threading
import time
from http.client import HTTPException

from world import MODEL, World

BETWEEN_S = 0.1


class Promises:
    """Asks in a thread of its own until `stop`; connection errors are repeated, as every client does."""

    def __init__(self, world: World):
        self.world, self.stopped, self.error = world, threading.Event(), None
        self.kept: list[tuple[dict, dict, dict]] = []
        """Request, promise, result."""
        self.session = self._ask("create_session", {"tags": [], "user_metadata": {}, "sdk_version": "0.38.0"})["session_id"]
        asked = {"session_id": self.session, "sampling_session_seq_id": 0, "base_model": MODEL}
        self.sampler = self._ask("create_sampling_session", asked)["sampling_session_id"]
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self) -> list[str]:
        """Ends it → what did not hold. The server must be up."""
        self.stopped.set()
        self.thread.join(120)
        if self.error or self.thread.is_alive():
            return [f"a sample by plain HTTP: {self.error or 'hangs'}"]
        return [fault for kept in self.kept if (fault := self._changed(*kept))]

    def _changed(self, request: dict, promise: dict, result: dict) -> str | None:
        try:
            again, repeated = self._result(promise), self._ask("asample", request)
        except AssertionError as e:
            return f"{self.sampler}, seq_id {request['seq_id']}, promised {promise}: {e}"
        if (again, repeated) == (result, promise):
            return None
        return f"{self.sampler}, seq_id {request['seq_id']}: promised {promise}, then {repeated}; told {result}, then {again}"

    def _run(self) -> None:
        try:
            while not self.stopped.is_set():
                params = {"max_tokens": 6, "temperature": 1.0, "stop": []}
                prompt = {"chunks": [{"type": "encoded_text", "tokens": [40, 50, 60 + len(self.kept) % 400]}]}
                request = {"sampling_session_id": self.sampler, "seq_id": len(self.kept), "num_samples": 2, "prompt": prompt, "sampling_params": params}
                promise = self._ask("asample", request)
                self.kept.append((request, promise, self._result(promise)))
                self.stopped.wait(BETWEEN_S)
        except BaseException as e:  # noqa: BLE001  told by `stop`
            self.error = f"{type(e).__name__}: {e}"

    def _result(self, promise: dict) -> dict:
        """The result in JSON; a poll that came too early is repeated."""
        end = time.monotonic() + 100
        while time.monotonic() < end:
            status, body = self._sent("retrieve_future", {"request_id": promise["request_id"], "allow_metadata_only": False})
            if status == 200 and "sequences" in body:
                return body
            assert status == 408, f"{status} {body}"
        raise AssertionError(f"promise {promise} is not kept")

    def _ask(self, path: str, body: dict) -> dict:
        status, answer = self._sent(path, body)
        assert status == 200, f"{path}: {status} {answer}"
        return answer

    def _sent(self, path: str, body: dict) -> tuple[int, dict]:
        """Sent again for a minute while nobody listens, or the answer breaks off."""
        end = time.monotonic() + 60
        while True:
            try:
                return self.world.call("POST", path, body)
            except (OSError, HTTPException, ValueError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
