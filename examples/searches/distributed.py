"""One search on several processes: KerasTuner's chief and its workers, on this machine.

    KERAS_BACKEND=torch python examples/searches/distributed.py induction-heads --workers 2

takes what search.py takes. The chief hands out trials, each worker runs one at a time; what the
chief says is shown here, and each worker writes to a file in the folder of the search.

A worker that is killed is started anew under its name, so the chief gives it the trial that it
had, and that trial runs again from its start. An error in a trial ends the search; the same
command goes on with it. Workers on other machines need the three variables below, the address of
the chief in place of 127.0.0.1, and a folder --work that all of them see.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import arguments


def make_parser():
    parser = arguments.make_parser(__doc__)
    parser.add_argument("--workers", type=arguments.positive, default=2, help="default: 2")
    return parser


if __name__ == "__main__":
    # --help and mistakes end here: what follows needs a backend and KerasTuner.
    make_parser().parse_args()

import project
import search

SCRIPT = pathlib.Path(__file__).with_name("search.py")
ADDRESS = "127.0.0.1"
RESTARTS = 3


class FailedError(Exception):
    """The search cannot go on; the message says why, and where to look."""


def main(argv=None):
    parser = make_parser()
    argv = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(argv)
    if args.smoke:
        parser.error("--smoke is for search.py alone")
    # A polite end from outside stops the processes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        found, hypermodel = search.prepare(args, args.model, args.tuner)
        found.claim()
        if not found.is_finished:
            run_processes(without_workers(argv), args.workers, found.folder)
            found.finish()
        search.show(found, found.make_tuner(hypermodel), args.results)
    except project.UnusableError as error:
        parser.error(str(error))
    except FailedError as error:
        sys.exit(str(error))


def without_workers(argv):
    """The arguments for search.py."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--workers")
    return parser.parse_known_args(argv)[1]


def run_processes(argv, workers, folder):
    """Runs the chief and the workers until the last trial is done, and leaves none behind."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        chief = Process("chief", argv, port, None, stack)
        team = [Process(f"worker-{number}", argv, port, folder, stack) for number in range(workers)]
        while not all(worker.is_done for worker in team):
            time.sleep(0.2)
            if chief.process.poll():  # 0 is its end after the last trial
                raise FailedError(f"The chief ended with status {chief.process.poll()}; see above.")
            for worker in team:
                worker.look_after()
        # The chief would notice up to 20 seconds later. All it knows is in its files already.


def free_port():
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return probe.getsockname()[1]


class Process:
    """The chief or a worker: search.py with KerasTuner's variables in its environment."""

    def __init__(self, name, argv, port, log_folder, stack):
        self.name = name
        self.command = [sys.executable, str(SCRIPT), *argv]
        self.environment = os.environ | {
            "KERASTUNER_TUNER_ID": name,
            "KERASTUNER_ORACLE_IP": ADDRESS,
            "KERASTUNER_ORACLE_PORT": str(port),
            # gRPC would ask a proxy for this very machine.
            "no_grpc_proxy": ADDRESS,
        }
        self.log = log_folder and log_folder / f"{name}.log"
        self.output = stack.enter_context(self.log.open("a")) if self.log else None
        self.restarts = 0
        self.is_done = False
        stack.callback(self.stop)
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            self.command,
            env=self.environment,
            stdout=self.output,
            stderr=subprocess.STDOUT if self.output else None,
        )
        place = f", see {self.log}" if self.log else ""
        print(f"{self.name}: process {self.process.pid}{place}", flush=True)

    def look_after(self):
        """Starts a process anew that was killed; one that ended with an error ends the search."""
        status = self.process.poll()
        if status is None or self.is_done:
            return
        if status == 0:
            self.is_done = True
        elif status < 0 and self.restarts < RESTARTS:
            self.restarts += 1
            print(f"{self.name} was killed by signal {-status}; its trial starts anew.", flush=True)
            self.start()
        else:
            raise FailedError(f"{self.name} ended with status {status}. See {self.log}.")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


if __name__ == "__main__":
    main()
