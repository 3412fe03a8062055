"""A COLMAP folder as a scene: ``images/`` beside ``sparse/0/`` or ``sparse/``, binary files before text ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.colmap_binary import read_binary, write_binary
from hotlap.data.colmap_model import MODEL_NUMBERS, ColmapCamera, ColmapImage, ColmapModel
from hotlap.data.colmap_text import read_model_text, write_model_text
from hotlap.data.file_bytes import read_text
from hotlap.data.picture_file import SUFFIXES
from hotlap.data.pinhole import Pinhole
from hotlap.data.posed import (
    BLACK,
    WHITE,
    Posed,
    check_factor,
    check_unique,
    find_mask,
    find_picture,
    finish_view,
    finite_points,
    random_points,
    with_names_of,
)
from hotlap.data.view import Scene, View, first_few
from hotlap.data.view_pixels import read_head

MODEL_FOLDERS = ("sparse/0", "sparse")
OTHER_MODEL_FOLDERS = ("colmap/sparse/0", "colmap_workspace/sparse/0", "")
"""Where nerfstudio and others put a model; looked at last, since such folders may hold a transforms.json as well."""
_NAMES = ("cameras", "images")


def find_model(scene: Path, folders: tuple[str, ...] = MODEL_FOLDERS + OTHER_MODEL_FOLDERS) -> Path | None:
    """The folder of a scene that holds a COLMAP model; None if none does."""
    for name in folders:
        if any(all((scene / name / f"{part}{suffix}").is_file() for part in _NAMES) for suffix in (".bin", ".txt")):
            return scene / name
    return None


def read_model(folder: Path) -> ColmapModel:
    """Cameras, photographs and points of a model's folder, from its binary files if it has them."""
    if all((folder / f"{part}.bin").is_file() for part in _NAMES):
        return read_binary(folder)
    return read_model_text(folder)


def write_model(folder: Path, model: ColmapModel, *, text: bool = False) -> None:
    """A model as COLMAP's three files, binary or text; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (write_model_text if text else write_binary)(folder, model)


def write_colmap(
    scene: Path | str, views: Iterable[View], points: np.ndarray, colors: np.ndarray, *, text: bool = False
) -> None:
    """Views and points as the model ``sparse/0`` of a scene's folder; pictures are the caller's, in ``images/``."""
    numbers: dict[Pinhole, int] = {}
    images = []
    for image_id, view in enumerate(views, 1):
        if view.lens is not None:
            raise DataError(
                f"view {view.name!r} has a lens, which its pictures would lose here",
                remedy="Write the pictures that load_view gives, and views without a lens",
            )
        camera_id = numbers.setdefault(view.camera, len(numbers) + 1)
        a, b, c = view.camera_from_world[:3, 3].tolist()
        quat = quat_of(view.camera_from_world[:3, :3])
        images.append(ColmapImage(image_id=image_id, quat=quat, shift=(a, b, c), camera_id=camera_id, name=view.name))
    cameras = {
        number: ColmapCamera(
            camera_id=number, model=MODEL_NUMBERS["PINHOLE"], width=camera.width, height=camera.height,
            params=(camera.fx, camera.fy, camera.cx, camera.cy),
        )
        for camera, number in numbers.items()
    }  # fmt: skip
    model = ColmapModel(cameras=cameras, images=tuple(images), points=points, colors=colors)
    write_model(Path(scene) / "sparse" / "0", model, text=text)


def read_colmap(
    scene: Path,
    images: str = "images",
    factor: int | None = None,
    *,
    white_background: bool = False,
    skip_missing: bool = False,
) -> Scene:
    """The scene of a COLMAP folder; transparent pixels are put on black unless white is asked for."""
    model_folder = find_model(scene)
    if model_folder is None:
        raise DataError(f"folder {str(scene)!r} has no COLMAP model", expected="cameras.bin and images.bin in sparse/0")
    model = read_model(model_folder)
    check_unique((image.name for image in model.images), scene)
    pictures, shrink = _picture_folder(scene, images, check_factor(factor))
    posed, missing = _find_pictures(scene, pictures, model)
    _check_missing(missing, len(model.images), pictures, skip_missing)
    heads = [read_head(view.image) for view in posed]
    background = WHITE if white_background else BLACK
    made = [finish_view(view, head, shrink, background) for view, head in zip(posed, heads, strict=True)]
    views = tuple(sorted(made, key=lambda view: view.name))
    points, colors, num_bad = finite_points(model.points, model.colors)
    bare = len(points) == 0
    if bare:
        points, colors = random_points(views, None)
    held_out = read_split(scene, model_folder)
    idle_masks = () if any(view.mask for view in posed) else _unused(_mask_folders(scene, pictures)[-1], set())
    return Scene(
        folder=scene, views=views, points=points, colors=colors, random_points=bare, num_bad_points=num_bad,
        white_background=white_background if any(head.transparent for head in heads) else None,
        held_out=None if held_out is None else with_names_of(held_out, views, scene),
        missing=tuple(missing), unused=_unused(pictures, {view.image for view in posed}), idle_masks=idle_masks,
    )  # fmt: skip


def _find_pictures(scene: Path, pictures: Path, model: ColmapModel) -> tuple[list[Posed], list[str]]:
    """The model's views with their pictures and masks, and the names of those without a picture."""
    masks = _mask_folders(scene, pictures)
    posed, missing = [], []
    for image in model.images:
        name = _safe_name(image)
        found = find_picture(pictures, name)
        if found is None:
            missing.append(image.name)
        else:
            posed.append(_posed(model, image, found, find_mask(masks, name)))
    return posed, missing


def _mask_folders(scene: Path, pictures: Path) -> list[Path]:
    """Where masks may be: for ``images_4``, ``masks_4`` before ``masks``."""
    suffix = pictures.name.removeprefix("images") if pictures.name.startswith("images_") else ""
    return [scene / name for name in dict.fromkeys((f"masks{suffix}", "masks"))]


def read_split(scene: Path, model_folder: Path) -> set[str] | None:
    """Names that ``train_test_split.json`` or ``test.txt`` sets aside; None without such a file."""
    path = scene / "train_test_split.json"
    if path.is_file():
        try:
            names = json.loads(read_text(path))["test"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                f"file {str(path)!r} cannot be read: {error!r}", expected="an object with a list 'test'"
            ) from error
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(f"file {str(path)!r} has no list of names under 'test'")
        return set(names)
    for path in (model_folder / "test.txt", scene / "test.txt"):
        if path.is_file():
            return {line.strip() for line in read_text(path).split("\n") if line.strip()}
    return None


def _picture_folder(scene: Path, images: str, factor: int) -> tuple[Path, int]:
    """Where the pictures are, and how much smaller they are still to be made: ``images_4`` for 4, if it is there."""
    if factor > 1 and (scene / f"{images}_{factor}").is_dir():
        return scene / f"{images}_{factor}", 1
    for name in (images, "input") if images == "images" else (images,):
        if (scene / name).is_dir():
            return scene / name, factor
    raise DataError(
        f"folder {str(scene / images)!r} does not exist", expected="the photographs of the scene",
        remedy="Name another folder of the scene as images",
    )  # fmt: skip


def _safe_name(image: ColmapImage) -> str:
    """The name of a picture, which must not lead out of the folder of pictures."""
    path = PurePosixPath(image.name.replace("\\", "/"))
    if not image.name or path.is_absolute() or ".." in path.parts or "\0" in image.name:
        raise DataError(f"image {image.image_id} is named {image.name!r}", expected="a path below the images' folder")
    return str(path)


def _posed(model: ColmapModel, image: ColmapImage, picture: Path, mask: Path | None) -> Posed:
    if image.camera_id not in model.cameras:
        raise DataError(
            f"image {image.name!r} names camera {image.camera_id}, which the model does not have",
            expected=f"one of {first_few([str(number) for number in sorted(model.cameras)], 8)}"
            if model.cameras else "a model with cameras",
        )  # fmt: skip
    camera = model.cameras[image.camera_id]
    return Posed(
        name=image.name, image=picture, mask=mask, camera_from_world=pose_of(image),
        camera=camera.pinhole(), lens=camera.lens(),
    )  # fmt: skip


def pose_of(image: ColmapImage) -> np.ndarray:  # [4, 4] float64
    """The camera from the world, of a photograph."""
    quat, shift = np.array(image.quat), np.array(image.shift)
    with np.errstate(over="ignore"):
        length = float(np.sqrt((quat * quat).sum()))
    if not (np.isfinite(length) and np.isfinite(shift).all()) or length == 0:
        raise DataError(
            f"image {image.name!r} has no pose: quaternion {image.quat}, translation {image.shift}",
            expected="finite numbers and a quaternion other than 0",
            remedy="Remove the image from the model, or estimate the poses again",
        )
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation_of(quat / length), shift
    return pose


def rotation_of(quat: np.ndarray) -> np.ndarray:  # [4] -> [3, 3]
    """The rotation that w, x, y, z of length 1 stand for."""
    w, x, y, z = quat
    return np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ])  # fmt: skip


def quat_of(rotation: np.ndarray) -> tuple[float, float, float, float]:  # [3, 3]
    """A rotation as w, x, y, z, with w not below 0."""
    # The eigenvector of the largest eigenvalue of this matrix is the quaternion, whatever the angle.
    r = rotation
    table = np.array([
        [r[0, 0] + r[1, 1] + r[2, 2], r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]],
        [r[2, 1] - r[1, 2], r[0, 0] - r[1, 1] - r[2, 2], r[0, 1] + r[1, 0], r[0, 2] + r[2, 0]],
        [r[0, 2] - r[2, 0], r[0, 1] + r[1, 0], r[1, 1] - r[0, 0] - r[2, 2], r[1, 2] + r[2, 1]],
        [r[1, 0] - r[0, 1], r[0, 2] + r[2, 0], r[1, 2] + r[2, 1], r[2, 2] - r[0, 0] - r[1, 1]],
    ])  # fmt: skip
    quat = np.linalg.eigh(table)[1][:, -1]
    w, x, y, z = (quat if quat[0] >= 0 else -quat).tolist()
    return w, x, y, z


def _check_missing(missing: list[str], total: int, pictures: Path, skip: bool) -> None:
    if missing and (not skip or len(missing) == total):
        raise DataError(
            f"{len(missing)} of {total} images are not in {str(pictures)!r}: {first_few(missing)}",
            remedy="Put them there, or ask for skip_missing to go on without them" if len(missing) < total
            else "Name the folder that holds the scene's pictures as images",
        )  # fmt: skip
    if not total:
        raise DataError(f"the model of {str(pictures.parent)!r} has no images", remedy="Estimate the poses again")


def _unused(folder: Path, used: set[Path]) -> tuple[str, ...]:
    found = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")]
    return tuple(sorted(str(path.relative_to(folder)) for path in found if path not in used))
