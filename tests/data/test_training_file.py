from simcse_cli.data.training_file import split_documents


def test_split_documents_breaks_at_blank_lines():
    lines = ["", "a ", "b", "", "  ", "c", ""]
    assert split_documents(lines) == [["a", "b"], ["c"]]
    assert split_documents([]) == []
