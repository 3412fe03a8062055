"""The verbs, each with the module that does it, imported only when it is called."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """What follows ``hotlap``: one word, or an application and one of its verbs (``splat train``)."""

    summary: str
    example: str
    handler: str
    """Function in ``hotlap.cli.commands``, or ``module:function`` elsewhere in ``hotlap.cli``."""
    config: str = ""
    """``module:Class`` of the settings its options are made from."""
    positional: str = ""
    """The setting that is given without a flag."""
    many: bool = False
    """Whether the positional takes several values."""


WITHOUT_TORCH = frozenset({"doctor", "compare", "report", "show", "list"})
"""Verbs that do their work where torch is not installed."""
VERBS: dict[str, Verb] = {
    "lap": Verb(
        "all of it in one go: how fast today, what makes it faster and stays right, proof, code to paste",
        "hotlap lap unet --for train --budget 10m",
        "run_lap",
        "hotlap.tools.lap:LapConfig",
        "target",
    ),
    "doctor": Verb(
        "does this machine really work? functional checks, each with its remedy",
        "hotlap doctor --measure",
        "run_doctor",
        "hotlap.tools.doctor:DoctorConfig",
    ),
    "quicktest": Verb(
        "does training work here? six steps from the device to ten training steps, for CI",
        "hotlap quicktest unet --device cuda",
        "run_quicktest",
        "hotlap.tools.quicktest:QuickTestConfig",
        "target",
    ),
    "bench": Verb(
        "how fast is it, on which arm, and is the difference real?",
        "hotlap bench unet --arms cpu,cuda:bf16+channels_last --quick",
        "run_bench",
        "hotlap.tools.bench:BenchConfig",
        "target",
    ),
    "loader": Verb(
        "how many workers does the data need, so that the model never waits?",
        "hotlap loader unet --batch 16",
        "run_loader",
        "hotlap.tools.loader:LoaderConfig",
        "target",
    ),
    "compare": Verb(
        "did a change make it slower? two records, for CI: exit 0 no, 1 yes, 3 cannot tell",
        "hotlap compare runs/unet/before runs/unet/after",
        "run_compare",
        "hotlap.tools.compare:CompareConfig",
        "records",
        many=True,
    ),
    "profile": Verb(
        "where does the time go? one arm traced and taken apart, with advice that can be checked",
        "hotlap profile unet --arm cuda:bf16 --steps 5",
        "run_profile",
        "hotlap.tools.profile:ProfileConfig",
        "target",
    ),
    "train": Verb(
        "trains it: exact batches, no step lost to memory, resumes bit for bit",
        "hotlap train unet --epochs 20 --precision bf16-mixed",
        "run_train",
        "hotlap.tools.train:TrainConfig",
        "target",
    ),
    "tune": Verb(
        "which batch, precision, layout and compilation are fastest and still right?",
        "hotlap tune unet --for train --budget 5m",
        "run_tune",
        "hotlap.tools.tune:TuneConfig",
        "target",
    ),
    "export": Verb(
        "the model for production: torch.export, AOTInductor, ONNX, TorchScript, each proved right and timed",
        "hotlap export unet --out deploy/ --formats aoti,onnx",
        "run_export",
        "hotlap.tools.export:ExportConfig",
        "target",
    ),
    "serve": Verb(
        "serves models over HTTP: real batches, a bounded queue, deadlines; drains when told to stop",
        "hotlap serve unet --weights unet=CHECKPOINT --port 8000",
        "hotlap.cli.serve:run_serve",
        "hotlap.tools.serve:ServeConfig",
        "models",
        many=True,
    ),
    "report": Verb(
        "tells the story of some records, then the evidence: HTML, PDF, LaTeX, a notebook, Markdown",
        "hotlap report before after --format html,pdf",
        "run_report",
        "hotlap.tools.report:ReportConfig",
        "records",
        many=True,
    ),
    "mesh views": Verb(
        "renders views of a folder of meshes, with cameras and surface points, to train on",
        "hotlap mesh views objects/ --out prepared/",
        "hotlap.cli.mesh:run_views",
        "hotlap.mesh.config:ViewsConfig",
        "folder",
    ),
    "mesh train": Verb(
        "trains a network on prepared views: the coarse stage, then the refinement",
        "hotlap mesh train prepared/ --epochs 200",
        "hotlap.cli.mesh:run_train",
        "hotlap.mesh.config:MeshTrainConfig",
        "data",
    ),
    "mesh predict": Verb(
        "the mesh of an object from its pictures and their cameras: OBJ, PLY, GLB, a turntable",
        "hotlap mesh predict a.png b.png c.png --cameras cameras.txt --weights CHECKPOINT",
        "hotlap.cli.mesh:run_predict",
        "hotlap.mesh.config:MeshPredictConfig",
        "images",
        many=True,
    ),
    "mesh eval": Verb(
        "how good are its meshes? Chamfer, F-score, normals by category; CSV and pictures",
        "hotlap mesh eval prepared/ --weights CHECKPOINT",
        "hotlap.cli.mesh:run_eval",
        "hotlap.mesh.config:MeshEvalConfig",
        "data",
    ),
    "segment predict": Verb(
        "finds, outlines and measures the objects in a folder of pictures: labels, CSV, COCO, YOLO, ROI, GeoJSON",
        "hotlap segment predict pictures/ --model CHECKPOINT --out segmented/ --formats labels,csv,coco",
        "hotlap.cli.segment_predict:run_predict",
        "hotlap.segment.predict_config:SegmentPredictConfig",
        "folder",
    ),
    "show": Verb("prints a record", "hotlap show latest", "run_show", "hotlap.cli.commands:ShowConfig", "run"),
    "list": Verb(
        "lists targets, or runs",
        "hotlap list runs",
        "run_list",
        "hotlap.cli.commands:ListConfig",
        "what",
    ),
    "splat train": Verb(
        "trains Gaussian splats on a scene's photographs; resumes bit for bit on a CPU",
        "hotlap splat train my_scene/ --out runs/my_scene --preset default",
        "hotlap.cli.splat:run_train",
        "hotlap.splat.config:SplatTrainConfig",
        "scene",
    ),
    "splat from-photos": Verb(
        "finds the cameras of plain photographs, then trains splats on them",
        "hotlap splat from-photos photos/ --out runs/my_scene --preset fast",
        "hotlap.cli.splat:run_from_photos",
        "hotlap.splat.photos_config:SplatPhotosConfig",
        "folder",
    ),
    "splat eval": Verb(
        "judges a training on its held-out photographs: PSNR, SSIM, LPIPS, picture by picture",
        "hotlap splat eval runs/my_scene",
        "hotlap.cli.splat:run_eval",
        "hotlap.splat.config:SplatEvalConfig",
        "run",
    ),
    "splat render": Verb(
        "draws trained splats from held-out cameras, an orbit or a path, as PNG files or a video",
        "hotlap splat render runs/my_scene --path orbit --out orbit.mp4",
        "hotlap.cli.splat:run_render",
        "hotlap.splat.config:SplatRenderConfig",
        "model",
    ),
    "splat view": Verb(
        "shows trained splats, or a training that still runs, in the browser",
        "hotlap splat view runs/my_scene --port 8080",
        "hotlap.cli.splat:run_view",
        "hotlap.splat.config:SplatViewConfig",
        "model",
    ),
    "splat export": Verb(
        "writes trained splats for viewers: .ply, .compressed.ply, .splat, .spz",
        "hotlap splat export runs/my_scene --out my_scene.spz",
        "hotlap.cli.splat:run_export",
        "hotlap.splat.config:SplatExportConfig",
        "model",
    ),
    "splat info": Verb(
        "what a scene, a training or a file of splats holds",
        "hotlap splat info my_scene/",
        "hotlap.cli.splat:run_info",
        "hotlap.splat.config:SplatInfoConfig",
        "what",
    ),
    "segment train": Verb(
        "teaches a network to find cells, from a folder of images and numbered labels",
        "hotlap segment train cells --model resunet-small --out trained",
        "hotlap.cli.segment:run_train",
        "hotlap.segment.app:SegmentTrainConfig",
        "data",
    ),
    "segment eval": Verb(
        "how well are the cells found? AP, F1, PQ and Dice on the held-out fifth, as tables and pictures",
        "hotlap segment eval cells --model trained --out scores",
        "hotlap.cli.segment:run_eval",
        "hotlap.segment.evaluate:SegmentEvalConfig",
        "data",
    ),
}

GROUPS: dict[str, str] = {
    "splat": "Gaussian splats from photographs: trained, judged, drawn, exported",
    "mesh": "meshes from pictures: rendered views, training, prediction, evaluation",
    "segment": "finds cells and other objects in pictures, each by itself: training, scores, prediction",
}
"""The applications that bring verbs of their own, with one line about each; ``hotlap APPLICATION`` lists the verbs."""

SERVER = "hotlap.web.server:serve"
"""What ``hotlap serve`` calls."""
