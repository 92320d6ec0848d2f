"""Asks a server for what the tiny DLRM of `nox -s serve-bundle` answers; needs tritonclient, an existing client.

python -m trunnion_bundle.examples.ask [HOST:PORT]
"""

from __future__ import annotations

import argparse

import tritonclient.grpc

from trunnion_bundle.examples import dlrm

TYPES = {"dense": "FP32", "sparse": "INT64"}


def ask(server: str, rows: int) -> list[float]:
    """The scores of `rows` rows of the example, from the gRPC port of a server that serves it as `dlrm`."""
    inputs = []
    for name, value in dlrm.example(rows).items():
        inputs.append(tritonclient.grpc.InferInput(name, list(value.shape), TYPES[name]))
        inputs[-1].set_data_from_numpy(value.numpy())
    answer = tritonclient.grpc.InferenceServerClient(server).infer("dlrm", inputs)
    return [float(score) for score in answer.as_numpy("scores")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", nargs="?", default="127.0.0.1:8001", help="HOST:PORT of gRPC")
    parser.add_argument("--rows", type=int, default=3)
    options = parser.parse_args()
    print(*(f"{score:.4f}" for score in ask(options.server, options.rows)))


if __name__ == "__main__":
    main()
