"""The tables as data: every row resolves at every scale, and the figures are the paper's."""

import pytest

from diffwindow.reproduce.cost import cost
from diffwindow.reproduce.scales import SCALES, scale_of
from diffwindow.reproduce.table import SVA_SUBSET, Column, Row, Table
from diffwindow.reproduce.tables import TABLE_4, TABLES, table_of
from diffwindow.tasks.presets import model_preset
from diffwindow.training.overrides import resolve


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_every_row_resolves(scale):
    # a wrong preset, override, layer or notation raises and names itself
    for table in TABLES.values():
        for column in table.columns:
            if column.name in scale.experiments:
                for row in table.rows:
                    cost(scale.experiment(column), row)


def test_rows_of_a_table_have_different_names():
    for table in TABLES.values():
        keys = [row.key for row in table.rows]
        assert len(set(keys)) == len(keys), table.name
        # the first row is what the others are compared with
        assert table.rows[0].attention == "Global", table.name


@pytest.mark.parametrize("name", [*(f"table{number}" for number in range(1, 7)), "table5-t2t"])
def test_every_cell_of_the_paper_has_its_figure(name):
    table = table_of(name)
    columns = {column.name for column in table.columns} - {SVA_SUBSET.name}
    assert all(columns <= set(row.paper) for row in table.rows)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_columns_exist_at_every_scale(scale):
    columns = {column.name for table in TABLES.values() for column in table.columns}
    # generated sentences and long blocks are not the paper's; the whole corpus of agreement is nothing small
    only_mini = {name for name in columns if name.startswith(("agreement", "lm-long"))}
    only_paper = {"sva", *(column.name for column in table_of("table5-t2t").columns)}
    missing = {"paper": only_mini, "trained": columns - {"en-de"}, "mini": only_paper, "smoke": set()}
    assert columns - scale.experiments.keys() == missing[scale.name]


def test_what_settings_are_chosen_by_is_the_validation_set():
    choosing = ("tuning", "rotary")
    assert {column.split for name in choosing for column in table_of(name).columns} == {"valid"}
    others = [column for table in TABLES.values() if table.name not in choosing for column in table.columns]
    # GLUE's test set has no labels
    assert {column.split for column in others if column.name != "sst-glue"} == {"test"}


def test_the_models_of_table_1_have_the_counted_parameters():
    counts = {
        row.key: model_preset("wmt14-en-de", attention=row.attention).count_parameters()
        for row in table_of("table1").rows
    }
    assert counts["Global"] == 60_915_712
    assert counts["Enc(AW)-Dec(MW)"] == 68_795_392
    assert counts["Cr(AW,Seg)"] == 65_643_520
    assert counts["Enc(AW)-Cr(AW,Seg)-Dec(MW)"] == 73_523_200


@pytest.mark.parametrize(("scale", "layers"), [("paper", [6, 6, 7, 8, 6]), ("mini", [4, 4, 5, 6, 4])])
def test_the_deeper_rows_of_table_4_have_one_and_two_layers_more(scale, layers):
    experiment = scale_of(scale).experiments["en-de"]
    models = [resolve(experiment.preset, experiment.overrides_of(row)).model for row in TABLE_4.rows]
    assert [model["encoder_layers"] for model in models] == layers
    assert [model["decoder_layers"] for model in models] == layers


def test_the_papers_scale_has_the_papers_bleu():
    columns = scale_of("paper").apply(table_of("table1")).columns
    assert [column.metric for column in columns] == ["bleu_compound_split", "bleu_tokenized"]
    assert {column.beside for column in columns} == {("bleu", "perplexity_by_token")}
    assert {column.metric for column in scale_of("mini").apply(table_of("table1")).columns} == {"bleu"}
    assert scale_of("paper").experiments["en-de"].store_name == "wmt16-en-de-moses"


def test_a_table_keeps_the_chosen_rows_and_columns():
    table = table_of("table5").choose(["sva"], ["Global", "Enc(AW)"])
    assert [column.name for column in table.columns] == ["sva"]
    assert [row.key for row in table.rows] == ["Global", "Enc(AW)"]


def test_mistakes_name_what_there_is():
    with pytest.raises(ValueError, match="there is no row 'Enc'; there are Global"):
        table_of("table5").choose([], ["Enc"])
    with pytest.raises(ValueError, match="did you mean 'table5'"):
        table_of("tabel5")
    with pytest.raises(ValueError, match="has no paper scale"):
        scale_of("paper").experiment(Column("agreement", "generated agreement", "accuracy"))


def test_a_row_with_another_model_has_another_name():
    plain, deep = Row("a"), Row("b", overrides=("model.num_layers=3",))
    assert plain.key != deep.key
    assert Table("t", "", (), (plain, deep)).choose([], [deep.key]).rows == (deep,)


def test_a_rows_name_has_the_whole_value_of_what_it_changes():
    assert Row("a", overrides=("model.dropout=0.3",)).key == "Global+dropout=0.3"
