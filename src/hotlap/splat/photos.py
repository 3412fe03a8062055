"""``hotlap splat from-photos``: photographs, then their cameras by structure from motion, then a training.

Each stage leaves one file or folder that is whole or absent, so that a run that was ended goes on after the last one
that is there.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import ConfigError, DataError, RecordError, StorageError
from hotlap.base.events import Emit, ignore
from hotlap.base.format import format_count, format_s
from hotlap.base.settings import Layer, resolve
from hotlap.data.colmap import read_model
from hotlap.data.picture_file import SUFFIXES, UnreadablePicture, opened_picture, require_pillow
from hotlap.data.view import first_few
from hotlap.data.view_pixels import read_head
from hotlap.engine.alone import alone_in
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import CHECKPOINTS
from hotlap.engine.durable import write_durably
from hotlap.records.run import RunRecord
from hotlap.splat.apart import check_apart
from hotlap.splat.begun import REMEDY
from hotlap.splat.config import SplatTrainConfig
from hotlap.splat.judging import PICTURES
from hotlap.splat.motion import Mapper, require_pycolmap
from hotlap.splat.photos_config import SHAPING, SplatPhotosConfig
from hotlap.splat.train import LEAVE_S, train

LEAST_PHOTOS = 3
FEW_SHARE = 0.8
"""If fewer of the photographs have a camera, the user is told which have not."""
SCENE, WORK, NOTE = "scene", "photos", "photos.json"
FEATURES, MATCHES, IMAGES, SPARSE = "features.db", "matches.db", "images", "sparse"
_ORIENTATION = 0x0112
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
OVERLAP_REMEDY = (
    "Photograph what does not move, in even light, from many places: neighbouring pictures should share two thirds of "
    "what they show, and the camera should move, not only turn"
)


@dataclass(frozen=True, kw_only=True)
class FromPhotos:
    """What came of it."""

    scene: Path
    """A COLMAP folder."""
    photos: int
    registered: tuple[str, ...]
    """Names of the photographs whose cameras are known."""
    points: int
    seconds: dict[str, float]
    """Of each stage that was made now, by name."""
    record: RunRecord | None
    """Of the training, if there was one."""


def from_photos(config: SplatPhotosConfig, emit: Emit = ignore) -> FromPhotos:
    """The scene that was found in the photographs, and the training on it."""
    photos = find_photos(config)
    others = other_files(Path(config.folder))
    if others:
        emit(
            events.warn(
                f"{format_count(len(others), 'file')} of no kind that is read here, left out: {first_few(others)}"
            )
        )
    settings = training_settings(config)
    out = Path(config.out)
    scene, work, seconds = out / SCENE, out / WORK, dict[str, float]()
    sparse = scene / SPARSE
    mapper = None if sparse.is_dir() else Mapper(require_pycolmap(), config)

    def stage(name: str, result: Path, make: Callable[[Path], None]) -> None:
        seconds.update(make_whole(name, result, make, emit))

    try:
        for folder in (scene, work):
            folder.mkdir(parents=True, exist_ok=True)
        with _alone(out, emit):
            _claim(config, photos, work / NOTE, is_begun=(scene / IMAGES).exists())
            stage("photographs", scene / IMAGES, lambda to: bring_photos(photos, to, emit))
            if mapper is not None:
                images = scene / IMAGES
                stage("features", work / FEATURES, lambda to: mapper.extract(images, to, emit))
                stage("matches", work / MATCHES, lambda to: mapper.match(work / FEATURES, to, len(photos), emit))
                stage("cameras", sparse, lambda to: _map(mapper, work / MATCHES, images, to, len(photos), emit))
    except OSError as error:
        raise StorageError(
            f"out = {config.out!r} cannot be written: {error.strerror or error}",
            remedy=REMEDY,
        ) from error
    model = read_model(sparse / "0")
    registered = tuple(sorted(image.name for image in model.images))
    _tell(photos, registered, len(model.points), emit)
    record = train(settings, emit, again="the same command") if settings is not None else None
    return FromPhotos(
        scene=scene, photos=len(photos), registered=registered, points=len(model.points), seconds=seconds, record=record
    )


def _alone(out: Path, emit: Emit) -> AbstractContextManager[None]:
    """Holds the folder while cameras are found: of two at once, one would end when the other is done."""
    return alone_in(
        out, wait_s=LEAVE_S, say=lambda text: emit(events.note(text)), does="works", then="give the same command again"
    )


def find_photos(config: SplatPhotosConfig) -> list[Path]:
    """The photographs of a folder by name."""
    if not config.folder or not config.out:
        name = "out" if config.folder else "folder"
        raise ConfigError(f"no {name} was given", remedy="As in 'hotlap splat from-photos photos/ --out runs/mine'")
    folder = Path(config.folder)
    if not folder.is_dir():
        raise DataError(f"folder = {config.folder!r} is no folder", expected="a folder with photographs")
    check_apart(Path(config.out), [folder], (SCENE, WORK, CHECKPOINTS, PICTURES))
    found = sorted(
        path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )
    if len(found) < LEAST_PHOTOS:
        raise DataError(
            f"folder = {config.folder!r} holds {len(found)} photographs",
            expected=f"at least {LEAST_PHOTOS}, better 20 or more ({', '.join(SUFFIXES)})",
            remedy=OVERLAP_REMEDY,
        )
    return found


def other_files(folder: Path) -> list[str]:
    """Names of files that are no photographs here, by name: a telephone's may be half of them."""
    found = [path for path in folder.iterdir() if path.suffix.lower() not in SUFFIXES and path.is_file()]
    return sorted(path.name for path in found if not path.name.startswith("."))


def training_settings(config: SplatPhotosConfig) -> SplatTrainConfig | None:
    """The settings of the training, checked before anything takes time; None where none is wanted."""
    if not config.train:
        return None
    out = Path(config.out)
    own = {
        "scene": str(out / SCENE), "out": config.out, "preset": config.preset, "device": config.device,
        "max_side": config.max_side, "resume": bool(CheckpointStore(out / CHECKPOINTS).steps()),
    }  # fmt: skip
    own |= {} if config.steps is None else {"steps": config.steps}
    taken = [name for name in config.training if name in own]
    if taken:
        is_flag = hasattr(config, taken[0])
        raise ConfigError(
            f"training.{taken[0]} = {config.training[taken[0]]!r} "
            + ("has a setting of its own" if is_flag else "is decided here"),
            expected=f"--{taken[0].replace('_', '-')}" if is_flag else "it left out",
        )
    return resolve(SplatTrainConfig, [Layer("from-photos", {**own, **config.training})]).config


def _claim(config: SplatPhotosConfig, photos: list[Path], note: Path, *, is_begun: bool) -> None:
    """Notes what the folder is for; refuses one that holds something else.

    Before the first stage is made it holds nothing: whoever was told to remove a bad photograph may go on there.
    """
    wanted: dict[str, Any] = {name: getattr(config, name) for name in SHAPING}
    wanted["photographs"] = _digest(photos)
    if not is_begun or not note.is_file():
        write_durably(note, json.dumps(wanted, indent=1).encode() + b"\n", remedy="Choose another folder with --out")
        return
    try:
        before = json.loads(note.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(f"{str(note)!r} is not whole JSON ({error})", remedy="Choose another folder") from error
    for name, value in wanted.items():
        if before.get(name) != value:
            what = f"{name} = {value!r} is" if name in SHAPING else f"the photographs in {config.folder!r} are"
            raise ConfigError(
                f"{what} not what out = {config.out!r} was begun with",
                expected=repr(before.get(name)) if name in SHAPING else "the same photographs",
                remedy="Choose another folder with --out",
            )


def _digest(photos: list[Path]) -> str:
    """Names and sizes of all photographs, as one short text: enough to tell another set."""
    listed = "\n".join(f"{path.name} {path.stat().st_size}" for path in photos)
    return hashlib.sha256(listed.encode()).hexdigest()[:16]


def make_whole(name: str, result: Path, make: Callable[[Path], None], emit: Emit) -> dict[str, float]:
    """Lets ``make`` write a file or folder beside its place and then gives it its name; the seconds that took.

    Nothing if it is there already. What a killed process left half-made is removed.
    """
    for left in result.parent.glob(f".{result.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    if result.exists():
        emit(events.note(f"{name}: there already"))
        return {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=result.parent, prefix=f".{result.name}-", ignore_cleanup_errors=True) as made:
        make(Path(made) / result.name)
        (Path(made) / result.name).rename(result)
    took = time.monotonic() - began
    emit(events.note(f"{name}: {format_s(took)}"))
    return {name: took}


def bring_photos(photos: list[Path], to: Path, emit: Emit) -> None:
    """Copies photographs, each upright: not every program turns them as EXIF says. WebP, which COLMAP does not read,
    becomes PNG without loss, with ``.png`` after the whole name.
    """
    pillow = require_pillow()
    from PIL import ImageOps

    to.mkdir()
    emit(events.start("photographs", len(photos)))
    for number, path in enumerate(photos, 1):
        read_head(path)  # one that a training would refuse for its size is refused before hours of work
        try:
            with opened_picture(path) as photo:
                if photo.format == "WEBP":
                    ImageOps.exif_transpose(photo).save(to / f"{path.name}.png")
                elif photo.getexif().get(_ORIENTATION, 1) == 1:
                    photo.load()  # a file that was cut short opens, too
                    shutil.copyfile(path, to / path.name)
                else:
                    upright = ImageOps.exif_transpose(photo)
                    form = "JPEG" if photo.format == "MPO" else photo.format  # a telephone's, with more pictures in it
                    kept = {"exif": upright.getexif().tobytes()} | ({"quality": 95} if form == "JPEG" else {})
                    upright.save(to / path.name, format=form, **kept)
        except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                raise  # the photograph is sound
            raise UnreadablePicture(str(path), str(error) or type(error).__name__) from error
        emit(events.advance("photographs", number, len(photos)))
    emit(events.finish("photographs"))


def _map(mapper: Mapper, matches: Path, images: Path, to: Path, photos: int, emit: Emit) -> None:
    """Writes the largest model as ``to/0``; refuses one of too few photographs."""
    registered = mapper.map(matches, images, to / "0", photos, emit)
    if registered < LEAST_PHOTOS:
        raise DataError(
            f"cameras were found for {registered} of {photos} photographs",
            expected=f"at least {LEAST_PHOTOS}",
            remedy=OVERLAP_REMEDY,
        )


def _tell(photos: list[Path], registered: tuple[str, ...], points: int, emit: Emit) -> None:
    emit(events.note(f"cameras of {len(registered)} of {len(photos)} photographs, {points} points"))
    known = set(registered)
    missing = [path.name for path in photos if not {path.name, f"{path.name}.png"} & known]
    if len(registered) < FEW_SHARE * len(photos):
        emit(events.warn(f"{len(missing)} photographs have no camera: {first_few(missing)}. {OVERLAP_REMEDY}"))
