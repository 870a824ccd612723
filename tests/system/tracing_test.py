#!/usr/bin/env python3
"""A span for each request, sent to a collector that speaks OTLP over HTTP."""
import http.server
import json
import threading
import time
import unittest
import urllib.error
import urllib.request

from support import DEADLINE_S, Server, run, wait_until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(http.server.ThreadingHTTPServer):
    def __init__(self):
        spans = self.spans = []
        self.resources = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for each in body["resourceSpans"]:
                    self.server.resources.append(each["resource"])
                    spans.extend(span for scope in each["scopeSpans"] for span in scope["spans"])
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")
        super().__init__(("127.0.0.1", 0), Handler)
        self.daemon_threads = True
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1/traces"


def attributes(span):
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


class Tracing(unittest.TestCase):
    def post(self, server, body, **headers):
        request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json", **headers})
        try:
            return urllib.request.urlopen(request, timeout=DEADLINE_S).read()
        except urllib.error.HTTPError as error:
            return error.read()

    def test_spans_continue_the_clients_trace(self):
        collector = Collector()
        self.addCleanup(collector.server_close)
        self.addCleanup(collector.shutdown)
        body = {"model": "demo", "messages": [{"role": "user", "content": "secret words"}], "max_tokens": 4}
        with Server("--served-model-name", "demo", "--otlp-traces-endpoint", collector.url, "--otel-service-name", "mine") as server:
            answer = json.loads(self.post(server, body, traceparent=f"00-{TRACE}-{PARENT}-01"))
            self.post(server, body, traceparent=f"00-{TRACE}-{PARENT}-00")  # not sampled
            self.post(server, {**body, "temperature": -1})
            server.get("/health")  # not of interest
            server.get("/v1/models")
            wait_until(lambda: len(collector.spans) >= 3, "three spans")
        first, bad, models = sorted(collector.spans, key=lambda span: int(span["startTimeUnixNano"]))
        self.assertEqual((first["traceId"], first["parentSpanId"], first["name"], first["kind"]),
                         (TRACE, PARENT, "POST /v1/chat/completions", 2))
        found = attributes(first)
        self.assertEqual((found["http.response.status_code"], found["gen_ai.operation.name"], found["gen_ai.request.model"]),
                         ("200", "chat", "demo"))
        self.assertEqual((found["gen_ai.response.id"], int(found["gen_ai.usage.output_tokens"])),
                         (answer["id"], answer["usage"]["completion_tokens"]))
        self.assertGreaterEqual(found["gen_ai.latency.e2e"], found["gen_ai.latency.time_to_first_token"])
        self.assertLess(abs(int(first["endTimeUnixNano"]) / 1e9 - time.time()), DEADLINE_S)
        self.assertEqual((attributes(bad)["http.response.status_code"], "parentSpanId" in bad), ("400", False))
        self.assertNotIn(bad["traceId"], (TRACE, models["traceId"]))
        self.assertEqual(attributes(collector.resources[0])["service.name"], "mine")
        self.assertNotIn("secret", json.dumps(collector.spans))

    def test_a_collector_that_is_gone_costs_no_request(self):
        with Server("--served-model-name", "demo", "--otlp-traces-endpoint", "http://127.0.0.1:1/v1/traces") as server:
            for _ in range(3):
                server.get("/v1/models")
            wait_until(lambda: "spans are lost" in server.log(), "the warning")
            self.assertEqual(server.stop()[0], 0)

    def test_an_endpoint_that_is_no_url_is_named(self):
        code, _, errors = run(["serve", "--port", "0", "--otlp-traces-endpoint", "localhost:4317"])
        self.assertEqual(code, 2)
        self.assertIn("otlp-traces-endpoint is localhost:4317", errors)


if __name__ == "__main__":
    unittest.main()
