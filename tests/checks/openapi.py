"""The OpenAPI document against a live server: every example works, every answer is as described.

    "$(tests/python_env openapi)" tests/checks/openapi.py --tinderbox target/debug/tinderbox --model-dir DIR

Serves a tiny model under the name the examples use, sends each operation's example in the order of a client's life and
checks status and body; then sends every optional field of every request as null, which must change nothing.
"""

import copy
import json
import re
import urllib.parse

import jsonschema
from openapi_server import get, serving
from runner import main
from server import arguments

# The order of a client's life. An operation that is missing here fails the run.
ORDER = """
root healthz client_config client_dynamic_config get_server_capabilities auth_token get_api_key
create_session telemetry session_heartbeat create_model get_info
forward_backward optim_step create_custom_loss forward
save_weights save_weights_for_sampler save_weights_external load_weights weights_info
create_sampling_session join_sampling_session get_sampler
asample retrieve_future retrieve_futures get_sequence cancel_future
list_models get_model completions chat_completions messages count_tokens
oai_list_models oai_get_model oai_completions oai_chat_completions anthropic_messages anthropic_count_tokens
list_training_runs get_training_run roll_back_training_run list_user_checkpoints search_checkpoints list_checkpoints list_model_checkpoints
publish_checkpoint unpublish_checkpoint set_checkpoint_ttl copy_weights checkpoint_archive
external_weights_urls download external_weights_upload_start upload external_weights_upload_finish delete_checkpoint
list_sessions get_session search_sessions trace_export export_download set_session_project
billing_usage_events billing_checkpoints usage status audit_log
unload_model finish_session delete_api_key
""".split()
# The key is one of --api-key, which cannot be withdrawn over HTTP.
EXPECTED = {"root": 303, "checkpoint_archive": 302, "delete_api_key": 403}


class Document:
    """The document and what its examples become on this server."""

    def __init__(self, server):
        self.server = server
        self.root = json.loads(get(server, "/openapi.json"))
        self.operations = {
            operation["operationId"]: (method, path, operation)
            for path, item in self.root["paths"].items()
            for method, operation in item.items()
        }
        # What the examples say → what the server gave out instead.
        self.real = {}
        # The files of the export, to be brought back.
        self.files = {}

    def resolve(self, node):
        while "$ref" in node:
            target = self.root
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            node = target
        return node

    def validate(self, value, schema):
        whole = {"$ref": "#/root", "root": schema, "components": self.root["components"]}
        jsonschema.Draft202012Validator(whole, format_checker=jsonschema.FormatChecker()).validate(value)

    def substituted(self, value):
        text = json.dumps(value)
        for example, real in sorted(self.real.items(), key=lambda pair: -len(pair[0])):
            text = text.replace(example, real)
        return json.loads(text)

    def body(self, operation):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        return None if content is None else self.substituted(content["example"])

    def send(self, name, body):
        """Status and body of the answer, both checked against the document."""
        method, path, operation = self.operations[name]
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "path":
                path = path.replace("{%s}" % parameter["name"], self.substituted(parameter["example"]))
        asked = {p["name"]: p["example"] for p in operation.get("parameters", []) if p["in"] == "query" and "example" in p}
        path += "?" + urllib.parse.urlencode(asked) if asked else ""
        key = None if operation.get("security") == [{}] else self.server.api_key
        if name == "upload":
            body = self.files["adapter_config.json"]
        status, headers, data = self.server.request(method, path, body, key)
        if str(status) not in operation["responses"]:
            raise AssertionError(f"{name}: status {status} is not described: {data[:300]!r}")
        response = self.resolve(operation["responses"][str(status)])
        media = headers.get("Content-Type", "").split(";")[0]
        content = response.get("content", {})
        if not content:
            assert not data, f"{name}: status {status} is described without a body, it has one"
            return status, None
        assert media in content, f"{name}: status {status} came as {media!r}"
        if media != "application/json":
            return status, data
        value = json.loads(data)
        self.validate(value, content[media]["schema"])
        return status, value


def examples(document):
    """Every example of a request works, and every example of an answer fits its own schema."""
    unknown = set(document.operations) ^ set(ORDER)
    assert not unknown, f"ORDER in tests/checks/openapi.py and the document differ in {sorted(unknown)}"
    examples = document.root["paths"]["/api/v1/create_session"]["post"]["responses"]["200"]["content"]
    session = examples["application/json"]["example"]["session_id"]
    request_id = document.operations["retrieve_future"][2]["requestBody"]["content"]["application/json"]["example"]["request_id"]
    for name in ORDER:
        operation = document.operations[name][2]
        for response in operation["responses"].values():
            for media in document.resolve(response).get("content", {}).values():
                given = media.get("examples", {}) | ({"": {"value": media["example"]}} if "example" in media else {})
                for example in given.values():
                    document.validate(example["value"], media["schema"])
        body = document.body(operation)
        if name == "external_weights_upload_start":
            body["files"] = [{"name": name, "size_bytes": len(data)} for name, data in document.files.items()]
        if body is not None:
            document.validate(body, operation["requestBody"]["content"]["application/json"]["schema"])
        status, value = document.send(name, body)
        assert status == EXPECTED.get(name, 200), f"{name}: {status} {value}"
        if name == "create_session":
            document.real[session] = value["session_id"]
        elif name == "external_weights_urls":
            files = {file: get(document.server, url.removeprefix(document.server.url)) for file, url in value["urls"].items()}
            document.files = {file: data for file, data in files.items() if file.startswith("adapter_")}
            document.real["TOKEN"] = next(iter(value["urls"].values())).split("/")[-2]
        elif name == "external_weights_upload_start":
            bring(document, value)
        elif name == "trace_export":
            document.real["EXPORT"], document.real["FILE"] = value["url"].split("/")[-2:]
        elif isinstance(value, dict) and "request_id" in value:
            document.real[request_id] = value["request_id"]
            result = wait(document, name)
            assert "error" not in result, f"{name}: {result}"
        print(f"{name}: {status}")


def bring(document, start):
    """Sends the files to their links; the example of `upload` then sends one of them again."""
    document.real["UPLOAD_ID"] = start["upload_id"]
    for file, url in start["urls"].items():
        status, _, value = document.server.request("put", url.removeprefix(document.server.url), document.files[file], key=None)
        assert status == 200 and json.loads(value)["size_bytes"] == len(document.files[file]), (file, status, value)
    document.real["UPLOAD_TOKEN"] = start["urls"]["adapter_config.json"].split("/")[-2]


def wait(document, name):
    """The result of the promise that was given out last."""
    body = document.body(document.operations["retrieve_future"][2])
    for _ in range(20):
        status, value = document.send("retrieve_future", body)
        if status == 200:
            return value
    raise AssertionError(f"{name}: no result")


def nulls(document):
    """null in the place of an optional field is taken as the field's absence: never "not valid"."""
    count = 0
    for name, (_, _, operation) in document.operations.items():
        body = document.body(operation)
        if body is None:
            continue
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        for where in optional_fields(document, schema, body):
            changed = copy.deepcopy(body)
            inner = changed
            for key in where[:-1]:
                inner = inner[key]
            inner[where[-1]] = None
            document.validate(changed, schema)
            status, value = document.send(name, changed)
            refused = status == 400 and "the request body is not valid" in value["detail"]
            assert not refused, f"{name}: {'.'.join(map(str, where))} = null: {value}"
            count += 1
    assert count > 50, count
    return f"{count} fields"


def optional_fields(document, schema, value):
    """Paths of all optional fields of the objects that the example holds."""
    schema = document.resolve(schema)
    for branch in schema.get("anyOf", []) + schema.get("allOf", []):
        yield from optional_fields(document, branch, value)
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            yield from ((i, *rest) for rest in optional_fields(document, schema["items"], item))
    if not isinstance(value, dict):
        return
    for field, inner in schema.get("properties", {}).items():
        if field not in schema.get("required", []):
            yield (field,)
        if field in value:
            yield from ((field, *rest) for rest in optional_fields(document, inner, value[field]))


def page(document):
    """The page is whole by itself: what it loads lies beside it."""
    html = get(document.server, "/docs/").decode()
    for link in re.findall(r'(?:src|href)="([^"]+)"', html):
        assert not re.match(r"(https?:)?//", link), f"/docs loads {link}"
        assert get(document.server, "/docs/" + link.removeprefix("./")), link
    assert "/openapi.json" in get(document.server, "/docs/swagger-initializer.js").decode()


def body(checks, args):
    with serving(args) as server:
        document = Document(server)
        checks.run("every example works", examples, document)
        checks.run("null is the absence of an optional field", nulls, document)
        checks.run("/docs needs nothing from elsewhere", page, document)


if __name__ == "__main__":
    main(arguments(__doc__), body)
