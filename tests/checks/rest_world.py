"""A server on a tiny model with two accounts, and what the checks of the REST side do with it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from address import datum
from runner import refused
from server import Server

os.environ.setdefault("HF_HUB_OFFLINE", "1")
NAME = "tiny/qwen3"
MINE, OTHERS = "tml-rest-mine", "tml-rest-other"


def becomes(true, otherwise: str) -> None:
    """Asks again until it is true; a minute is long enough for a machine that is busy."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, otherwise
        time.sleep(0.05)


class World:
    """Both accounts' clients, and a run of the first with a checkpoint."""

    def __init__(self, server: Server, work: Path, model_dir: Path):
        import tinker

        self.tinker, self.server, self.work, self.model_dir = tinker, server, work, model_dir
        self.mine = server.service(MINE, user_metadata={"team": "a"}, project_id="proj-a")
        self.rest = self.mine.create_rest_client()
        self.other = server.service(OTHERS)
        self.other_rest = self.other.create_rest_client()
        self.trainer = self.mine.create_lora_training_client(NAME, rank=4, seed=1, user_metadata={"renderer_name": "r"}).result()
        self.step(self.trainer, 1)
        self.saved = self.trainer.save_state("one").result().path

    def restart(self, **environment: str) -> None:
        """Runs are not kept over a restart, so that there is a new one afterwards."""
        self.server.stop()
        self.server.start(**environment)
        self.trainer = self.mine.create_training_client_from_state(self.saved).result()

    def step(self, trainer, n: int) -> None:
        for i in range(n):
            trainer.forward_backward([datum([3 + i, 4, 5, 6])], "cross_entropy").result()
            trainer.optim_step(self.tinker.types.AdamParams(learning_rate=1e-2)).result()

    def logprobs(self, service, path: str, tokens) -> list[float]:
        return self.sampler_logprobs(service.create_sampling_client(model_path=path).result(), tokens)

    def sampler_logprobs(self, sampler, tokens) -> list[float]:
        return sampler.compute_logprobs(self.tinker.types.ModelInput.from_ints(tokens)).result()[1:]

    def refused(self, call, status: int, mention: str) -> None:
        refused(Exception, call, mention, status=status)

    def command(self, *args: str) -> str:
        """Output of the `tinker` command, run in this process: one of its own takes seconds to import the SDK.

        For one key alone, since the SDK keeps its client for the life of a process.
        """
        from click.testing import CliRunner
        from tinker.cli.__main__ import main_cli

        done = CliRunner().invoke(main_cli, args, env={"TINKER_BASE_URL": self.server.url, "TINKER_API_KEY": MINE, "TINKER_TELEMETRY": "0"})
        assert done.exit_code == 0, f"tinker {' '.join(args)}: {done.exit_code}\n{done.output}{done.exception or ''}"
        return done.stdout
