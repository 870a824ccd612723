"""HTTPS: certificates, clients of other programs, and connections that are not what they should be."""
import contextlib
import http.client
import json
import pathlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import unittest

import openai

from support import DEADLINE_S, Server, run, wait_until


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_certificate(folder, name, authority=None):
    """NAME.pem and NAME.key in the folder; signed by itself, or by the authority there."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    signed = ["-CA", str(folder / f"{authority}.pem"), "-CAkey", str(folder / f"{authority}.key")] if authority else []
    request = folder / f"{name}.csr"
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key), "-subj", f"/CN={name}",
            *(["-out", str(request)] if authority else
              ["-x509", "-out", str(certificate), "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]))
    if authority:
        openssl("x509", "-req", "-in", str(request), *signed, "-CAcreateserial", "-out", str(certificate))
    return certificate, key


class Https(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.certificate, cls.key = make_certificate(cls.folder, "server")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def server(self, *arguments):
        return Server("--ssl-certfile", str(self.certificate), "--ssl-keyfile", str(self.key), *arguments)

    def connect(self, server, context=None):
        context = context or ssl.create_default_context(cafile=self.certificate)
        port = int(server.url.rsplit(":", 1)[1])
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE_S, context=context)
        self.addCleanup(connection.close)
        return connection

    def test_clients_get_whole_answers_and_streams(self):
        with self.server() as server:
            self.assertTrue(server.url.startswith("https://"), server.url)
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", http_client=openai.DefaultHttpx2Client(
                verify=ssl.create_default_context(cafile=self.certificate)))
            ask = {"model": "demo", "messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0}
            whole = client.chat.completions.create(**ask).choices[0].message.content
            pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**ask, stream=True)]
            self.assertEqual("".join(pieces), whole)
            curl = subprocess.run(["curl", "-sS", "--cacert", self.certificate, server.url + "/v1/models"],
                                  capture_output=True, text=True, timeout=DEADLINE_S)
            self.assertEqual(json.loads(curl.stdout)["data"][0]["id"], "demo", curl.stderr)
            code, out, errors = run(["chat", "--url", server.url, "--temperature", "0"], "Who are you?\n",
                                    environment={"SSL_CERT_FILE": str(self.certificate)})
            self.assertEqual((code, out.strip()), (0, whole.strip()), errors)
            code, _, errors = run(["chat", "--url", server.url], "Who are you?\n")  # an authority that the system does not know
            self.assertEqual(code, 1)
            self.assertIn("certificate", errors)
            connection = self.connect(server)
            for _ in range(3):  # one connection
                connection.request("POST", "/v1/completions", json.dumps({"model": "demo", "prompt": "a" * 100_000}),
                                   {"Content-Type": "application/json"})
                response = connection.getresponse()
                self.assertEqual(response.status, 400, response.read()[:500])
                response.read()
            self.assertEqual(connection.sock.version(), "TLSv1.3")

    def test_what_is_not_tls_is_closed_and_disturbs_nobody(self):
        with self.server() as server:
            port = int(server.url.rsplit(":", 1)[1])
            for first in (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 100, b"\x16"):
                with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as plain:
                    plain.sendall(first)
                    with contextlib.suppress(ConnectionResetError):  # closed with bytes unread
                        while plain.recv(4096):  # an alert, at most
                            pass
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.load_verify_locations(self.certificate)
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            with self.assertRaises((ssl.SSLError, OSError)):
                self.connect(server, old).request("GET", "/health")
            connection = self.connect(server)
            connection.request("GET", "/health")
            self.assertEqual(connection.getresponse().status, 200)

    def test_a_connection_is_closed_after_its_response(self):
        with self.server() as server:
            context = ssl.create_default_context(cafile=self.certificate)
            port = int(server.url.rsplit(":", 1)[1])
            with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as plain:
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as stream:
                    stream.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    received = b""
                    while piece := stream.recv(4096):  # to the end that TLS announces: without it, an error
                        received += piece
            self.assertTrue(received.startswith(b"HTTP/1.1 200"), received)

    def test_clients_prove_who_they_are(self):
        authority, _ = make_certificate(self.folder, "authority")
        certificate, key = make_certificate(self.folder, "client", "authority")
        stranger, stranger_key = make_certificate(self.folder, "stranger")
        with self.server("--ssl-ca-certs", str(authority), "--ssl-cert-reqs", "2") as server:
            def status(*files):
                context = ssl.create_default_context(cafile=self.certificate)
                if files:
                    context.load_cert_chain(*files)
                connection = self.connect(server, context)
                connection.request("GET", "/health")
                return connection.getresponse().status
            self.assertEqual(status(certificate, key), 200)
            for files in ((), (stranger, stranger_key)):
                with self.assertRaises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                    status(*files)

    def test_a_renewed_certificate_is_used_by_new_connections(self):
        for name in ("pem", "key"):
            shutil.copy(self.folder / f"server.{name}", self.folder / f"live.{name}")
        live = self.folder / "live.pem"
        with Server("--ssl-certfile", str(live), "--ssl-keyfile", str(self.folder / "live.key")) as server:
            port = int(server.url.rsplit(":", 1)[1])
            open_one = self.connect(server)
            open_one.request("GET", "/health")
            self.assertEqual(open_one.getresponse().read(), b"")
            before = ssl.get_server_certificate(("127.0.0.1", port))
            certificate, key = make_certificate(self.folder, "next")
            shutil.copy(certificate, live)  # for a moment it does not fit the key
            self.assertEqual(ssl.get_server_certificate(("127.0.0.1", port)), before)
            wait_until(lambda: "the old ones stay in use" in server.log(), "the warning")
            shutil.copy(key, self.folder / "live.key")
            self.assertEqual(ssl.get_server_certificate(("127.0.0.1", port)), certificate.read_text())
            open_one.request("GET", "/health")
            self.assertEqual(open_one.getresponse().status, 200)

    def test_files_that_do_not_fit_are_named(self):
        other = make_certificate(self.folder, "other")[1]
        for arguments, word in ((("--ssl-certfile", "/none.pem"), "ssl-certfile /none.pem: "),
                                (("--ssl-certfile", str(self.certificate)), "ssl-keyfile " + str(self.certificate)),
                                (("--ssl-certfile", str(self.certificate), "--ssl-keyfile", str(other)), "ssl-keyfile "),
                                (("--ssl-keyfile", str(self.key)), "need ssl-certfile"),
                                (("--ssl-certfile", str(self.certificate), "--ssl-cert-reqs", "2"), "needs ssl-ca-certs"),
                                (("--ssl-certfile", str(self.certificate), "--ssl-keyfile", str(self.key), "--ssl-ciphers",
                                  "none"), "ssl-ciphers none: ")):
            code, _, errors = run(["serve", "--port", "0", *arguments])
            self.assertEqual(code, 2, errors)
            self.assertIn(word, errors)


if __name__ == "__main__":
    unittest.main()
