"""The contract of a bundle: bundle.json as typed values, read strictly and written canonically. See docs/format.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trunnion_bundle import canonical
from trunnion_bundle.errors import BundleError
from trunnion_bundle.fields import BUNDLE_NAME, HASH, NAME, PLATFORM, Fields, as_path
from trunnion_bundle.lowerings import Lowering, read_keys, read_lowering, required_sizes
from trunnion_bundle.policy import Batching, read_batching
from trunnion_bundle.signatures import LONGEST_TEXT, Module, Signature, read_module, read_signature
from trunnion_bundle.steps import asset_paths

FORMAT = "trunnion-bundle"
FORMAT_VERSION = 1
FRAMEWORKS = ("torch", "jax", "flax", "keras", "none")
MOST_BYTES = 16 << 20
MOST_NAMES = 64
WEIGHTS_SUFFIX = ".safetensors"


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """Size in bytes and SHA-256 of a listed file."""

    sha256: str
    size: int

    def to_json(self) -> dict[str, Any]:
        return {"sha256": self.sha256, "size": self.size}


@dataclass(frozen=True, kw_only=True)
class Producer:
    """What the model was trained and exported with."""

    framework: str
    framework_version: str
    tool_version: str

    def to_json(self) -> dict[str, Any]:
        return {
            "framework": self.framework,
            "framework_version": self.framework_version,
            "tool_version": self.tool_version,
        }


@dataclass(frozen=True, kw_only=True)
class Source:
    """A torch.export archive with one program for each module, without weights.

    `tensors`: module -> parameter or buffer of its program -> key in the checkpoint.
    """

    path: str
    torch_version: str
    tensors: Mapping[str, Mapping[str, str]]

    def to_json(self) -> dict[str, Any]:
        tensors = {name: dict(keys) for name, keys in self.tensors.items()}
        return {"path": self.path, "torch_version": self.torch_version, "tensors": tensors}


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Everything that bundle.json says."""

    name: str
    producer: Producer
    modules: Mapping[str, Module]
    signatures: Mapping[str, Signature]
    default_signature: str
    lowerings: Mapping[str, Lowering]
    files: Mapping[str, FileFact]
    weights: tuple[str, ...] = ()
    source: Source | None = None
    description: str = ""

    def to_json(self) -> dict[str, Any]:
        def tables(items: Mapping[str, Any]) -> dict[str, Any]:
            return {name: item.to_json() for name, item in items.items()}

        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "description": self.description,
            "producer": self.producer.to_json(),
            "modules": tables(self.modules),
            "signatures": tables(self.signatures),
            "default_signature": self.default_signature,
            "weights": list(self.weights),
            "source": self.source.to_json() if self.source else None,
            "lowerings": tables(self.lowerings),
            "files": tables(self.files),
        }

    def encode(self) -> bytes:
        """The bytes of bundle.json."""
        return canonical.text(self.to_json()).encode()

    @property
    def policy(self) -> dict[str, dict[str, Any]]:
        """Signature -> its whole policy, as the history keeps it."""
        return {name: signature.batching.to_json() for name, signature in self.signatures.items()}

    def with_policy(self, policy: Mapping[str, Any], where: str) -> Bundle:
        """The bundle with other policies, checked; signatures that are not named keep theirs.

        Raises:
            BundleError: an unknown signature, or a policy that it or a lowering cannot have.
        """
        signatures = dict(self.signatures)
        for name, value in policy.items():
            if name not in signatures:
                raise BundleError(f"{where}: unknown signature {name!r}; choices: {', '.join(signatures)}")
            largest = self.modules[signatures[name].module].largest_batch
            batching: Batching = read_batching(value, f"{where}.{name}", largest)
            signatures[name] = replace(signatures[name], batching=batching)
        changed = replace(self, signatures=signatures)
        _check_sizes(changed, where)
        return changed


def decode(data: bytes, where: str = "bundle.json") -> Bundle:
    """The bundle whose bundle.json is `data`.

    Raises:
        BundleError: not canonical, an unknown or missing key, or anything that docs/format.md does not allow.
    """
    if len(data) > MOST_BYTES:
        raise BundleError(f"{where} has {len(data)} bytes; limit: {MOST_BYTES}")
    return read_bundle(canonical.parse(data, where), where)


def read_bundle(value: Any, where: str = "bundle.json") -> Bundle:
    """As `decode`, of a value of JSON."""
    fields = Fields(value, where)
    fields.choice("format", (FORMAT,))
    version = fields.take("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise BundleError(f"{where}: format_version is {version!r}; this reader knows: {FORMAT_VERSION}")
    modules = fields.table("modules", read_module, NAME, 1, MOST_NAMES)
    lowerings = fields.take("lowerings")
    signatures = fields.table("signatures", lambda item, at: read_signature(item, at, modules), NAME, 1, MOST_NAMES)
    found = Bundle(
        name=fields.string("name", pattern=BUNDLE_NAME),
        description=fields.string("description", longest=LONGEST_TEXT),
        producer=_read_producer(fields.take("producer"), fields.place("producer")),
        modules=modules,
        signatures=signatures,
        default_signature=fields.choice("default_signature", signatures),
        weights=fields.array("weights", as_path),
        source=fields.optional("source", lambda item, at: _read_source(item, at, modules)),
        lowerings=_read_lowerings(lowerings, fields.place("lowerings"), modules),
        files=_read_files(fields.take("files"), fields.place("files")),
    )
    fields.close()
    _check_sizes(found, where)
    _check_paths(found, where)
    return found


def _read_lowerings(value: Any, where: str, modules: Mapping[str, Module]) -> dict[str, Lowering]:
    fields = Fields({"lowerings": value}, where.rpartition(".")[0])
    platforms = fields.table("lowerings", lambda item, _: item, PLATFORM, 1, MOST_NAMES)
    return {name: read_lowering(item, f"{where}.{name}", name, modules) for name, item in platforms.items()}


def _read_producer(value: Any, where: str) -> Producer:
    fields = Fields(value, where)
    found = Producer(
        framework=fields.choice("framework", FRAMEWORKS),
        framework_version=fields.string("framework_version"),
        tool_version=fields.string("tool_version"),
    )
    fields.close()
    return found


def _read_source(value: Any, where: str, modules: Mapping[str, Module]) -> Source:
    fields = Fields(value, where)
    found = Source(
        path=as_path(fields.take("path"), fields.place("path")),
        torch_version=fields.string("torch_version"),
        tensors=fields.table("tensors", read_keys, NAME, 1),
    )
    fields.close()
    if wrong := sorted(set(modules) ^ set(found.tensors)):
        raise BundleError(f"{where}.tensors: not in both places: {', '.join(wrong)}; modules: {', '.join(modules)}")
    return found


def _read_files(value: Any, where: str) -> dict[str, FileFact]:
    fields = Fields(value, where)
    found = {}
    for path in sorted(value):
        fact = Fields(fields.take(as_path(path, where)), f"{where}.{path}")
        found[path] = FileFact(sha256=fact.string("sha256", pattern=HASH), size=fact.integer("size", 0))
        fact.close()
    return found


def _check_sizes(bundle: Bundle, where: str) -> None:
    allowed: dict[str, set[int]] = {name: set() for name in bundle.modules}
    for signature in bundle.signatures.values():
        allowed[signature.module].update(signature.batching.allowed_sizes)
    for platform, lowering in bundle.lowerings.items():
        required_sizes(allowed, lowering, f"{where}: lowerings.{platform}")


def _check_paths(bundle: Bundle, where: str) -> None:
    if list(bundle.weights) != sorted(set(bundle.weights)):
        raise BundleError(f"{where}.weights is {list(bundle.weights)}; it must be sorted, with no path twice")
    for path in bundle.weights:
        if not path.endswith(WEIGHTS_SUFFIX):
            raise BundleError(f"{where}.weights names {path!r}; it must end in {WEIGHTS_SUFFIX}")
    for path, user in _used_paths(bundle):
        if path not in bundle.files:
            raise BundleError(f"{where}: {user} names {path!r}, which 'files' does not list")


def _used_paths(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Every path that the contract names, and where."""
    for path in bundle.weights:
        yield path, "weights"
    if bundle.source:
        yield bundle.source.path, "source"
    for name, signature in bundle.signatures.items():
        for path in (
            *signature.warmup,
            *signature.golden,
            *(asset for step in signature.steps for asset in asset_paths(step)),
        ):
            yield path, f"signatures.{name}"
    for platform, lowering in bundle.lowerings.items():
        for module in lowering.modules.values():
            for path in module.paths:
                yield path, f"lowerings.{platform}"
