"""The web app of the shop. `POST /orders` writes an order and its event in one transaction."""

import json
import sys
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from shop import connect, orders


def place_order(item: str, amount: float) -> int:
    with closing(connect()) as database, database:  # one commit: the order and its event, or neither
        row = database.execute("INSERT INTO orders (item, amount) VALUES (?, ?) RETURNING number", (item, amount))
        (number,) = row.fetchone()
        order = {"number": number, "item": item, "amount": amount}
        orders.publish("order.placed", order, connection=database)
        if amount <= 0:
            raise ValueError("the amount must be above 0")  # rolls both back
    return int(number)


class Requests(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            wanted = json.loads(body)
            status, text = 201, f"order {place_order(wanted['item'], wanted['amount'])}\n"
        except (KeyError, TypeError, ValueError) as error:
            status, text = 400, f"no order: {error}\n"
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


def main(port: int) -> None:
    with orders, ThreadingHTTPServer(("127.0.0.1", port), Requests) as server:
        print(f"http://127.0.0.1:{port}/orders", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
