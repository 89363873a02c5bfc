"""Checks of files: downloads, the archive of old clients, and adapters that `peft` made."""

from __future__ import annotations

import json
import tarfile
import urllib.request
from pathlib import Path

from address import datum
from rest_world import NAME, OTHERS, World


class FileChecks(World):
    def check_download_and_archive(self):
        target = self.work / "download"
        self.server.cli("checkpoint", "download", self.saved, "--output", str(target))
        names = {p.name for p in target.rglob("*") if p.is_file()}
        assert {"adapter_config.json", "adapter_model.safetensors"} <= names, names
        export = self.trainer.save_weights_external("e", ttl_seconds=3600).result()
        urls = self.rest.get_external_weights_urls(export.path).result().urls
        url = urls["adapter_model.safetensors"]
        with urllib.request.urlopen(url, timeout=30) as answer:
            whole = answer.read()
            assert int(answer.headers["Content-Length"]) == len(whole) > 0
        forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "t.example"}
        route = "training_runs/{2}/checkpoints/{3}/{4}".format(*export.path.split("/"))
        links = self.server.call("GET", route + "/external_weights_urls", headers=forwarded)[1]["urls"]
        assert all(link.startswith("https://t.example/api/v1/download/") for link in links.values()), links

        status, headers, _ = self.server.request("GET", "/api/v1/training_runs/{2}/checkpoints/{3}/{4}/archive".format(*self.saved.split("/")))
        assert status == 302 and headers["Expires"].endswith("GMT"), (status, headers)
        with urllib.request.urlopen(headers["Location"], timeout=30) as answer, tarfile.open(fileobj=answer, mode="r|*") as tar:
            assert {"adapter_config.json", "adapter_model.safetensors", "checkpoint_complete"} <= set(tar.getnames())

    def upload(self, directory: Path, **wish):
        """Status and answer of the finish."""
        files = [directory / "adapter_config.json", directory / "adapter_model.safetensors"]
        announced = [{"name": f.name, "size_bytes": f.stat().st_size} for f in files]
        status, started = self.server.call("POST", "external_weights_upload_start", {"files": announced, **wish})
        if status != 200:
            return status, started
        for file in files:
            request = urllib.request.Request(started["urls"][file.name], file.read_bytes(), method="PUT")
            urllib.request.urlopen(request, timeout=60).read()
        finish = {"upload_id": started["upload_id"]}
        assert self.server.call("POST", "external_weights_upload_finish", finish, OTHERS)[0] == 404
        first = self.server.call("POST", "external_weights_upload_finish", finish)
        if first[0] == 200:
            assert self.server.call("POST", "external_weights_upload_finish", finish) == first, "a repeat gets the same"
        return first

    def peft_model(self, **config):
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_pretrained(self.model_dir, dtype=torch.float32)
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **config))
        return model.eval()

    def reference_logprobs(self, model, tokens) -> list[float]:
        import torch

        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, :-1]
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()

    def check_an_uploaded_adapter_is_the_one_that_peft_made(self):
        import torch

        cases = {
            "attention, alpha 16": dict(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]),
            "everywhere, rslora": dict(r=4, lora_alpha=6, use_rslora=True, target_modules="all-linear"),
            "one layer": dict(r=2, lora_alpha=64, target_modules=["down_proj", "o_proj"], layers_to_transform=[0]),
            "half precision": dict(r=8, lora_alpha=32, target_modules=["gate_proj", "k_proj"]),
        }
        tokens = [3, 9, 27, 14, 5, 40, 8]
        for name, config in cases.items():
            model = self.peft_model(**config)
            if name == "half precision":
                for key, p in model.named_parameters():
                    if "lora_" in key:
                        p.data = p.data.to(torch.bfloat16).to(torch.float32)
            directory = self.work / "peft" / name.replace(" ", "-")
            model.save_pretrained(directory)
            if name == "half precision":
                from safetensors.torch import load_file, save_file

                file = directory / "adapter_model.safetensors"
                save_file({k: v.to(torch.bfloat16) for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
            status, answer = self.upload(directory, base_model=NAME, name="adapter", project_id="proj-up", user_metadata={"from": "peft"})
            assert status == 200, answer
            path = answer["tinker_path"]
            want = self.reference_logprobs(model, tokens)
            gap = max(abs(a - b) for a, b in zip(self.logprobs(self.mine, path, tokens), want, strict=True))
            base = self.mine.create_sampling_client(base_model=NAME).result()
            moved = max(abs(a - b) for a, b in zip(self.sampler_logprobs(base, tokens), want, strict=True))
            assert gap < 2e-5 < moved, f"{name}: {gap} from peft, {moved} from the base model"
            trainer = self.mine.create_training_client_from_state(path).result()
            out = trainer.forward([datum(tokens)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
            assert max(abs(float(a) - b) for a, b in zip(out, want, strict=True)) < 2e-5, name
            self.step(trainer, 2)
            export = trainer.save_weights_external("again").result().path
            assert len(self.rest.get_external_weights_urls(export).result().urls) >= 2
            row = self.rest.list_checkpoints(path.split("/")[2]).result().checkpoints[0]
            assert row.user_metadata == {"from": "peft"} and row.checkpoint_id == "weights/adapter"
            print(f"    {name}: {gap:.1e} from peft, {moved:.1e} from the base model")
        assert len(self.rest.list_training_runs(project_id="proj-up").result().training_runs) == len(cases)
        assert not any((self.server.data / "uploads").iterdir()), "nothing is left of what was sent"

    def check_an_upload_that_does_not_fit_is_refused_by_name(self):
        import torch
        from safetensors.torch import load_file, save_file

        directory = self.work / "peft" / "broken"
        self.peft_model(r=4, lora_alpha=8, target_modules=["q_proj"]).save_pretrained(directory)
        config, weights = directory / "adapter_config.json", directory / "adapter_model.safetensors"
        good_config, good = json.loads(config.read_text()), load_file(weights)

        def broken(mention: str, change_config=None, change=None, **wish):
            changed = {**good_config, **(change_config or {})}
            config.write_text(json.dumps(changed))
            tensors = {k: v.clone() for k, v in good.items()}
            if change:
                change(tensors)
            save_file(tensors, weights, metadata={"format": "pt"})
            status, answer = self.upload(directory, **{"base_model": NAME, **wish})
            assert status == 400 and mention in answer["detail"], f"{mention!r}: {status} {answer}"

        key = sorted(good)[0]
        broken("r is 5000", {"r": 5000})
        broken("rank and base model need [8,", {"r": 8})
        broken("target_modules names c_attn", {"target_modules": ["q_proj", "c_attn"]})
        broken("use_dora is true", {"use_dora": True})
        broken("is no matrix of a LoRA adapter", change=lambda t: t.update({"base_model.model.lm_head.weight": torch.zeros(2, 2)}))
        broken("has no module model.layers.99.self_attn.q_proj", change=lambda t: t.update({key.replace("layers.0", "layers.99"): t[key].clone()}))
        broken("has dtype F64", change=lambda t: t.update({key: t[key].double()}))
        broken("holds the value NaN", change=lambda t: t[key].fill_(float("nan")))
        broken("alone", change=lambda t: t.pop(key))
        broken("\"another/model\" is not served here", {"base_model_name_or_path": "another/model"}, base_model=None)
        broken("is not served here", base_model="another/model")
        status, answer = self.server.call("POST", "external_weights_upload_start", {"files": [{"name": "../x", "size_bytes": 1}]})
        assert status == 400 and "adapter_config.json" in answer["detail"], answer
        assert not any((self.server.data / "uploads").iterdir()), "a refused upload vanishes"
