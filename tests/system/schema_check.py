#!/usr/bin/env python3
"""schemathesis against /openapi.json of a server that generates and of one that embeds: no answer with a status of 500 or
above but those that a client's own deadline gives, none of another form than described, nothing wrong taken for right, and
the server lives. Run by make test-clients.
Usage: schema_check.py [EXAMPLES]: so many random requests for each operation (default: 10)."""
import json
import pathlib
import subprocess
import sys
import tempfile

from support import ROOT, Server, is_running

EXAMPLES = sys.argv[1] if len(sys.argv) > 1 else "10"
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "negative_data_rejection", "unsupported_method", "ignored_auth")
# What would end or pause the server, and what takes names of things that are there.
EXCLUDED = ("/admin/drain", "/metrics", "/pause")
# max_queue_time_s and max_request_time_s may be shorter than anything takes.
CONFIGURATION = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503, 504]
"""
SMALL = ("--api-key", "k", "--max-model-len", "128", "--max-request-samples", "4", "--shutdown-timeout", "0")
SERVERS = {
    "generates": ("--served-model-name", "demo", "--override-generation-config", json.dumps({"max_new_tokens": 4})),
    "embeds": ("--model", str(ROOT / "tests" / "golden" / "models" / "models" / "qwen3_embed"), "--dtype", "float32"),
}


def check(name):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "schemathesis.toml").write_text(CONFIGURATION)
        arguments = (*SERVERS[name], *SMALL, "--batch-directory", f"{folder}/batches")
        with Server(*arguments, environment={"VLLM_SERVER_DEV_MODE": "1"}) as server:
            command = [pathlib.Path(sys.executable).with_name("schemathesis"), "run", server.url + "/openapi.json",
                       "--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing", "--max-examples", EXAMPLES,
                       "--continue-on-failure", "--request-timeout", "60", "--seed", "19", "--suppress-health-check", "all",
                       "-H", "Authorization: Bearer k"]
            for path in EXCLUDED:
                command += ["--exclude-path", path]
            code = subprocess.run(command, cwd=folder, check=False).returncode
            if not is_running(server.process.pid):
                print(server.log(), file=sys.stderr)
                return False
            server.get("/health")
            return code == 0


if __name__ == "__main__":
    sys.exit(0 if all([check(name) for name in SERVERS]) else 1)
