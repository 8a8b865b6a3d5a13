"""Hangs, and answers on NCCL's port as its RAS service does."""

import socketserver

ANSWERS = {
    "CLIENT PROTOCOL 2": "SERVER PROTOCOL 2\n",
    "TIMEOUT 2": "OK\n",
    "VERBOSE STATUS": "NCCL version 2.28.9\n\nErrors\n======\n\n#0-0 (cf26) INCOMPLETE\n  Missing data from 1 rank\n\n",
}


class Ras(socketserver.StreamRequestHandler):
    def handle(self):
        request = ""
        while request != "VERBOSE STATUS":
            request = self.rfile.readline().decode().strip()
            self.wfile.write(ANSWERS[request].encode())


with socketserver.TCPServer(("127.0.0.1", 28028), Ras) as server:
    print("waits for the others", flush=True)
    server.serve_forever()  # ras
