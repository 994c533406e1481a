"""Tiny-ImageNet: photographs in 200 classes."""

from pathlib import Path

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data.sources.folders import Folders, Sample


class TinyImageNet(Folders):
    """110,000 photographs of 64 × 64 pixels in 200 classes. The 10,000 in its ``val`` part are the test set.

    Le, Yang. Tiny ImageNet Visual Recognition Challenge. 2015. Files are laid out as in tiny-imagenet-200.zip.
    """

    @property
    def folder(self) -> Path:
        return self.root / "tiny-imagenet-200"

    def samples(self) -> tuple[list[Sample], list[Sample]]:
        return self.training_samples(), self._annotated_samples()

    def _annotated_samples(self) -> list[Sample]:
        """Return the files of ``val``, whose classes are listed in a separate file."""
        annotations = self.folder / "val" / "val_annotations.txt"
        if not annotations.is_file():
            raise MisconfigurationError(self.missing_message())
        numbers = {name: number for number, name in enumerate(self.classes)}
        found = []
        for line, text in enumerate(annotations.read_text().splitlines(), 1):
            name, _, rest = text.partition("\t")
            path = annotations.parent / "images" / name
            label = numbers.get(rest.split("\t")[0])
            if label is None or not path.is_file():
                raise MisconfigurationError(
                    f"{annotations}, line {line}: {text!r} does not name an image in {path.parent} and a known class:"
                    " download the data set again"
                )
            found.append((str(path), label))
        return found

    def missing_message(self) -> str:
        return (
            f"Tiny-ImageNet is not in {self.folder}: unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip"
            f" in {self.root}, or set data.source.init_args.root to the folder that holds tiny-imagenet-200"
        )
