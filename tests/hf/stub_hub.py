"""A hub for one machine: repositories in memory, behind the addresses that huggingface_hub calls."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class Hub(BaseHTTPRequestHandler):
    # commits of each repository, oldest first: (commit, files by name)
    commits: dict[str, list[tuple[str, dict[str, bytes]]]]

    def log_message(self, *_):
        """Stay silent."""

    def do_POST(self):
        path = unquote(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if path == "/api/repos/create":
            request = json.loads(body)
            name = "/".join(part for part in (request.get("organization"), request["name"]) if part)
            self.commits.setdefault(name, [])
            host = self.headers["Host"]
            return self.answer({"url": f"http://{host}/{name}", "name": name})
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        name = "/".join(path.split("/")[3:5])
        if "/preupload/" in path:
            files = [file["path"] for file in json.loads(body)["files"]]
            return self.answer(
                {"files": [{"path": file, "uploadMode": "regular", "shouldIgnore": False} for file in files]}
            )
        if "/commit/" in path:
            files = dict(self.commits[name][-1][1]) if self.commits[name] else {}
            for line in body.decode().splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
            self.commits[name].append((commit, files))
            url = f"http://{self.headers['Host']}/{name}/commit/{commit}"
            return self.answer({"commitUrl": url, "commitOid": commit, "success": True})
        return self.answer({"error": f"no {path}"}, status=404)

    def do_GET(self):
        path = unquote(self.path).partition("?")[0]
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            found = self.find("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
            if found is None:
                return self.answer({"error": "Revision Not Found"}, 404, {"X-Error-Code": "RevisionNotFound"})
            commit, files = found
            if "tree" in parts:
                entries = [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in files.items()
                ]
                return self.answer(entries)
            name = "/".join(parts[2:4])
            siblings = [{"rfilename": file} for file in files]
            return self.answer({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []})
        if len(parts) >= 5 and parts[2] == "resolve":
            found = self.find("/".join(parts[:2]), parts[3])
            file = "/".join(parts[4:])
            if found is None or file not in found[1]:
                return self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            data = found[1][file]
            headers = {"X-Repo-Commit": found[0], "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
            return self.answer(data, 200, headers)
        return self.answer({"error": f"no {path}"}, 404)

    def do_HEAD(self):
        return self.do_GET()

    def find(self, name, revision):
        commits = self.commits.get(name) or []
        if revision == "main":
            return commits[-1] if commits else None
        return next((commit for commit in commits if commit[0] == revision), None)

    def answer(self, content, status=200, headers=None):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json" if data is not content else "application/binary")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def stub_hub():
    """Run a hub; yield its address and its repositories."""
    handler = type("OneHub", (Hub,), {"commits": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler.commits
    finally:
        server.shutdown()
        server.server_close()
