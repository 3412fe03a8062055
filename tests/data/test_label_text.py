import pytest
import torch

from hotlap.base.errors import DataError
from hotlap.data.characters import PAD, UNKNOWN, VOCABULARY, decode, encode
from hotlap.data.label_text import EncodedTexts, read_label_text, read_text_folder


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_reads_spaces_tabs_blank_lines_and_line_ends(tmp_path):
    found = read_label_text(write(tmp_path / "a.txt", "\ufeff1 good film\r\n\n0\tbad  film\n2 a"))
    assert found.labels == ["1", "0", "2"]
    assert found.texts == ["good film", "bad  film", "a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1 good\n0\n", "line 2: '0' is not 'label text'"),
        (b"1 good\n1 caf\xe9\n", "line 2: byte 6 is 0xe9, which is not UTF-8"),
        (b"\n \n", "holds no texts"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(DataError, match=r"bad.txt") as caught:
        read_label_text(write(tmp_path / "bad.txt", content))
    assert message in str(caught.value)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError, match="'/nowhere' does not exist"):
        read_text_folder(tmp_path.__class__("/nowhere"))
    with pytest.raises(DataError, match=r"neither dev.txt nor test.txt"):
        read_text_folder(tmp_path)
    write(tmp_path / "dev.txt", "1 a")
    with pytest.raises(DataError, match=r"train.txt' does not exist"):
        read_text_folder(tmp_path)


def test_labels_are_numbered_in_order(tmp_path):
    write(tmp_path / "train.txt", "10 a\n9 b\n-1 c\n")
    write(tmp_path / "test.txt", "9 b\n")
    assert read_text_folder(tmp_path)[2] == ["-1", "9", "10"]
    write(tmp_path / "train.txt", "pos a\nneg b\n9 c\n")
    assert read_text_folder(tmp_path)[2] == ["9", "neg", "pos"]


def test_labels_must_be_several_and_known(tmp_path):
    write(tmp_path / "train.txt", "1 a\n1 b\n")
    write(tmp_path / "dev.txt", "2 a\n")
    with pytest.raises(DataError, match="only the label '1'"):
        read_text_folder(tmp_path)
    write(tmp_path / "train.txt", "1 a\n0 b\n")
    with pytest.raises(DataError, match=r"the label '2', which train.txt does not"):
        read_text_folder(tmp_path)


def test_texts_are_cut_and_padded(tmp_path):
    texts = read_label_text(write(tmp_path / "a.txt", "yes abcdef\nno é~\n"))
    data = EncodedTexts(texts, ["no", "yes"], length=4)
    assert decode(data[0]["tokens"].tolist()) == "abcd"
    assert data[1]["tokens"].tolist() == [UNKNOWN, VOCABULARY - 1, PAD, PAD]
    assert data.lengths.tolist() == [4, 2] and data.labels.tolist() == [1, 0]


def test_every_printable_character_has_its_own_id():
    printable = "".join(map(chr, range(32, 127)))
    ids = encode(printable)
    assert len(set(ids)) == 95 and min(ids) == 2 and max(ids) == VOCABULARY - 1
    assert decode(ids) == printable
    assert torch.tensor(encode("\n\té")).eq(UNKNOWN).all()
