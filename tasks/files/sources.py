"""The places that raw files may be fetched from (``anchorfl data fetch``), with their digests.

A digest is one that somebody publishes for that very file, or that of a copy of it at hand. Where there is none, it
stays empty, and the file comes only on request (``--unverified``). A data set that is not here has no address that is
known to give its files: they are put into its folder by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on a server."""

    path: str
    """Its name below the folder of the data set. Of a ``.zip``, what the data set reads is unpacked there."""
    url: str
    digest: str = ""
    """``sha256:...`` or ``md5:...``; empty: nobody publishes one."""
    variant: str = ""
    """The variant of the data set that needs it; empty: all do."""


_GITHUB = "https://raw.githubusercontent.com"
_MULAN = f"{_GITHUB}/tsoumakas/mulan/43f6389095ad71984264db4387a8074b22bc7d4a/data/multi-label"
_R8_STEMMED = f"{_GITHUB}/achyudh/fuzzy-fs/3c8fc8b5d4a1883dde8ead22fee0dfafa7b8c767/data/R8"
_R8_TEXTGCN = f"{_GITHUB}/yao8839836/text_gcn/5fa0c35dbe09453a8f724c3f3eb8b6f172deb18c/data/R8"
_FOLDS = f"{_GITHUB}/jatanloya/extrasensory-dp/167e0a899cb73c6e20398e8af886517cc9357c3e/cv_5_folds"
_MEDMNIST = "https://zenodo.org/records/10519652/files"
_PAMAP2 = RemoteFile(
    "pamap2.zip", "https://archive.ics.uci.edu/static/public/231/pamap2+physical+activity+monitoring.zip"
)


def _medmnist(name: str, md5: Mapping[str, str]) -> tuple[RemoteFile, ...]:
    """Return the files of MedMNIST+. md5: variant -> MD5, as the package ``medmnist`` 3.0.2 states them."""
    files = []
    for variant, digest in md5.items():
        path = f"{name}.npz" if variant == "28" else f"{name}_{variant}.npz"
        files.append(RemoteFile(path, f"{_MEDMNIST}/{path}?download=1", f"md5:{digest}", variant))
    return tuple(files)


def _mulan(name: str, digests: Mapping[str, str]) -> tuple[RemoteFile, ...]:
    """Return files of the Mulan authors' repository. digests: file name -> SHA-256, or empty."""
    return tuple(
        RemoteFile(path, f"{_MULAN}/{name}/{path}", digest and f"sha256:{digest}") for path, digest in digests.items()
    )


def _train_test(name: str) -> tuple[RemoteFile, ...]:
    return _mulan(name, dict.fromkeys((f"{name}-train.arff", f"{name}-test.arff", f"{name}.xml"), ""))


def _drive(path: str, key: str) -> tuple[RemoteFile, ...]:
    """Return a copy of a set of the extreme-classification repository that napkinXC's author keeps; the repository's
    own links have stopped working.
    """
    url = f"https://drive.usercontent.google.com/download?id={key}&export=download&confirm=t"
    return (RemoteFile(path, url),)


SOURCES: dict[str, tuple[RemoteFile, ...]] = {
    "r8": (
        RemoteFile(
            "r8-train-stemmed.txt",
            f"{_R8_STEMMED}/r8-train-stemmed.txt",
            "sha256:52d8f626d6b3d71c4ac859d84e9b5fd5469a3f4948ca25e46a4d0ddeedab52b6",
            "stemmed",
        ),
        RemoteFile(
            "r8-test-stemmed.txt",
            f"{_R8_STEMMED}/r8-test-stemmed.txt",
            "sha256:bac15782889426df2fb8414a154330c7fafd9cc7e7bc3d3669f6fc78d069313e",
            "stemmed",
        ),
        RemoteFile(
            "r8-train-textgcn.txt",
            f"{_R8_TEXTGCN}/train.txt",
            "sha256:3ed60c905aaa95b96c3fc4afb6d14ad2e20106c59c5b9dda950dcb3075eecfbe",
            "textgcn",
        ),
        RemoteFile(
            "r8-test-textgcn.txt",
            f"{_R8_TEXTGCN}/test.txt",
            "sha256:2ba368c42e6808bc3dc68b8f7879eb07a2810ed137f0b304e2213b689677e561",
            "textgcn",
        ),
    ),
    "extrasensory": (
        RemoteFile(
            "extrasensory.zip",
            "http://extrasensory.ucsd.edu/data/primary_data_files/ExtraSensory.per_uuid_features_labels.zip",
            "md5:9e44b3484b74cd8a370ff22894e0899b",  # as users of the archive publish it, with its size
        ),
        *(
            RemoteFile(f"cv_5_folds/{name}", f"{_FOLDS}/{name}", f"sha256:{digest}", "users")
            for name, digest in {
                "fold_0_test_android_uuids.txt": "a6bea0fc3559e48d18362a0536b5f2af27769c54b23cbd184ccc5fc61ed61cdd",
                "fold_0_test_iphone_uuids.txt": "39b03216b0b76aa7c73bc89dfefcc16a51c7ff0b0bb0c18e503e2adb69c8207f",
                "fold_1_test_android_uuids.txt": "21afb07e16f3f2c0b8eaa849fa9a8a5dde756a2468b62ebc168899c06806fad0",
                "fold_1_test_iphone_uuids.txt": "ce89cf87c1fb1386ecf2ee33326422bf80f485a8d030cbbf6be94ff4be3e9842",
                "fold_2_test_android_uuids.txt": "779a54989f297d2082376abc7a1bbb92d340f1d9e622fde15a02ed6c466e26d7",
                "fold_2_test_iphone_uuids.txt": "1836253dd35e93406addc1eeebe259d0e15adbf802f18dcbc424caeccf6a17f0",
                "fold_3_test_android_uuids.txt": "5e3c533200b4a964b5c8c296601dc8478f1a0955c4b454449a4309fee874a05b",
                "fold_3_test_iphone_uuids.txt": "a84b6ac9c765fae0f2f236fc499d30eeb19ba9d3cebf2f2f536b4b63780dbb19",
                "fold_4_test_android_uuids.txt": "0dabc751838f36ca7a320b21b27e1dc3d3752ba5289fde35053fc78099e8e4e2",
                "fold_4_test_iphone_uuids.txt": "95c4a0840a49a571bdcf1af3a9e71b9f7c9a3af470c84bc8916dd973b21f594d",
            }.items()
        ),
    ),
    "pamap2": (_PAMAP2,),
    "pamap2-optional": (_PAMAP2,),
    "kvasir-v2": (RemoteFile("kvasir-v2.zip", "https://datasets.simula.no/downloads/kvasir/kvasir-dataset-v2.zip"),),
    "bloodmnist": _medmnist(
        "bloodmnist",
        {
            "28": "7053d0359d879ad8a5505303e11de1dc",
            "64": "2b94928a2ae4916078ca51e05b6b800b",
            "128": "adace1e0ed228fccda1f39692059dd4c",
            "224": "b718ff6835fcbdb22ba9eacccd7b2601",
        },
    ),
    "dermamnist": _medmnist(
        "dermamnist",
        {
            "28": "0744692d530f8e62ec473284d019b0c7",
            "64": "b70a2f5635c6199aeaa28c31d7202e1f",
            "128": "2defd784463fa5243564e855ed717de1",
            "224": "8974907d8e169bef5f5b96bc506ae45d",
        },
    ),
    "eurlex-4k": _drive("eurlex-4k.zip", "1xWW1UykQBTD2IorVn7V8XubJatQDScol"),
    "amazoncat-13k": _drive("amazoncat-13k.zip", "1WvBWF9hH5ZlFcpCRhp8wLVGwdeGZXKD2"),
    "amazon-670k": _drive("amazon-670k.zip", "1PV-wbKVv6Ng1K1XM1USqNxFhaQo2qfk6"),
    "wikilshtc-325k": _drive("wikilshtc-325k.zip", "1Y5xEJu-j3M7voyFV5Ouq9Wl3vyd9fus2"),
    "scene": _mulan(
        "scene",
        {
            "scene-train.arff": "b53ba93bdf412de922e3960389bcee24744fa3e872ce610511fc1d750888b64d",
            "scene-test.arff": "ea38d20296b3ff7e220f477a3b802a9bcb2d768881fe6ee163efbc97ea527a42",
            "scene.xml": "55d8b247b949ad5c52e5a73d8c6775ec6e5469ce9682465b45b333b68ee4bcc5",
        },
    ),
    "yeast": _mulan(
        "yeast",
        {
            "yeast-train.arff": "e759dc991ff54694a4ff9c4314f3be0d6fd2b1994a4b563f57e416394c6aebbd",
            "yeast-test.arff": "4aaac102bff9669a765bf0b378602e5cc8c3b181048282e2f003117b496d552a",
            "yeast.xml": "c3056cc26444b5158b1588d1b73bec9c45429e10f0957ad085903423cb81f247",
        },
    ),
    "birds": _train_test("birds"),
    "cal500": _mulan("cal500", {"cal500.arff": "", "cal500.xml": ""}),
    "corel5k": _mulan(
        "corel5k", dict.fromkeys(("Corel5k-train-sparse.arff", "Corel5k-test-sparse.arff", "Corel5k.xml"), "")
    ),
    "delicious": _train_test("delicious"),
    "emotions": _train_test("emotions"),
    "enron": _train_test("enron"),
}
"""Data set -> its files."""
