"""No event loop in sight: the same bus for scripts."""

from durabus import Event, SyncEventBus


def make_report(event: Event) -> int:
    return sum(event.payload["figures"])


def main() -> None:
    with SyncEventBus("memory://") as bus:
        bus.subscribe("report.wanted", make_report)

        bus.publish("report.wanted", {"figures": [1, 2, 3]})  # returns when the handler is done
        print("published and handled")

        handle = bus.emit("report.wanted", {"figures": [20, 22]})
        print(f"the sum is {handle.result()}")


if __name__ == "__main__":
    main()
