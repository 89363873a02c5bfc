"""A server of the model that the OpenAPI document's examples name, and the document read from it."""

import contextlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

MODEL = "Qwen/Qwen3-8B"
KEY = "tml-openapi"
HERE = pathlib.Path(__file__).resolve().parent


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


class Server:
    def __init__(self, url):
        self.url = url
        self.opener = urllib.request.build_opener(NoRedirect)

    def request(self, method, path, body=None, keyed=True):
        """Status, headers and bytes of the answer. A body that is not bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | ({"X-API-Key": KEY} if keyed else {})
        request = urllib.request.Request(self.url + path, data, headers, method=method.upper())
        try:
            with self.opener.open(request, timeout=60) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def fetch(self, url):
        return self.get(url.removeprefix(self.url))

    def put(self, url, data):
        status, _, answer = self.request("put", url.removeprefix(self.url), data, keyed=False)
        return status, answer

    def get(self, path):
        status, _, data = self.request("get", path, keyed=False)
        assert status == 200, f"{path}: {status} {data[:300]!r}"
        return data


def arguments(parser):
    parser.add_argument("--tinderbox", default="target/debug/tinderbox", help="the binary")
    parser.add_argument("--model-dir", help="a tiny model; made with tests/python_env when not given")


@contextlib.contextmanager
def serving(args):
    """Yields a running server with one key. Its log is shown when the block fails."""
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        model = args.model_dir or tiny_model(work)
        log = work / "server.log"
        command = [args.tinderbox, "serve", "--port", "0", "--data-dir", work / "data", "--model", f"{MODEL}={model}"]
        with log.open("wb") as out:
            process = subprocess.Popen([*command, "--api-key", KEY], stdout=out, stderr=out)
        try:
            yield Server(ready(process, log))
        except BaseException:
            sys.stderr.write("the server's log ends:\n" + log.read_text()[-3000:])
            raise
        finally:
            process.terminate()
            process.wait(30)


def tiny_model(work):
    python = subprocess.check_output([HERE / "python_env"], text=True).strip()
    maker = HERE / "conformance/make_tiny_model.py"
    subprocess.check_call([python, maker, work / "models", "--variant", "qwen3"], stdout=subprocess.DEVNULL)
    return work / "models/qwen3"


def ready(process, log):
    """The server's URL, which its log names when it is ready."""
    for _ in range(300):
        found = re.search(r"ready on .*?(http://[0-9.:]+)", re.sub(r"\x1b\[[0-9;]*m", "", log.read_text()))
        if found:
            return found[1]
        assert process.poll() is None, "the server ended"
        time.sleep(0.2)
    raise TimeoutError("the server did not become ready")
