//! The page of an experiment: a table for each measure, with situations and variants in rows and the
//! columns side by side.

use bench::{Document, Interval, Latencies, QUOTED, RUNS_TO_COMPARE, RUNS_TO_RESAMPLE, Table};

use super::Name as Experiment;
use super::data::Data;
use crate::measure::Name;

/// The whole page.
pub fn document(data: &Data) -> Result<Document, String> {
    let mut document =
        Document { title: format!("Figures of {}", data.experiment.text()), ..Document::default() };
    let drivers: Vec<_> =
        data.columns.iter().map(|column| format!("{}: {}", column.label, column.driver)).collect();
    document.paragraphs = vec![
        format!("{} rounds, the columns in turn. {}", data.rounds, data.machine.text()),
        format!("Drivers: {}.", drivers.join(", ")),
        format!(
            "Cells: median of the rounds ({}), and what comparing it to {} shows.",
            if data.rounds < RUNS_TO_RESAMPLE { "range" } else { "95 % bootstrap interval" },
            if by_column(data.experiment) {
                "the first column"
            } else {
                "the first variant of the same situation in the same column"
            },
        ),
    ];
    document.paragraphs.extend(data.facts.clone());
    for column in &data.columns {
        let doubts = column.doubts.iter().map(|doubt| format!("{}: {doubt}", column.label));
        document.paragraphs.extend(doubts);
    }
    for measure in measures(data.columns.iter().flat_map(|it| &it.series).map(|it| &it.name)) {
        figures(data, &measure, &mut document)?;
    }
    for measure in measures(data.columns.iter().flat_map(|it| &it.histograms).map(|it| &it.name)) {
        document.tables.push(percentiles(data, &measure)?);
    }
    document.commands = data.columns.iter().map(|column| column.command.join(" ")).collect();
    document.commands.push(data.command.join(" "));
    Ok(document)
}

/// Whether columns are compared to the first one, rather than variants.
fn by_column(experiment: Experiment) -> bool {
    matches!(experiment, Experiment::Files | Experiment::Echo)
}

/// Each measure once, in the order in which they come.
fn measures<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut measures = Vec::new();
    for name in names.filter_map(|name| Name::parse(name)) {
        if !measures.contains(&name.measure) {
            measures.push(name.measure);
        }
    }
    measures
}

/// The rows of a measure, each once.
fn rows<'a>(names: impl Iterator<Item = &'a String>, measure: &str) -> Vec<Name> {
    let mut rows = Vec::new();
    for name in names.filter_map(|name| Name::parse(name)) {
        if name.measure == measure && !rows.contains(&name) {
            rows.push(name);
        }
    }
    rows
}

fn head(data: &Data, title: &str) -> Vec<String> {
    let labels = data.columns.iter().map(|column| column.label.clone());
    [title.to_owned(), "variant".to_owned()].into_iter().chain(labels).collect()
}

/// A table of medians, and the pictures of what is compared in it.
fn figures(data: &Data, measure: &str, document: &mut Document) -> Result<(), String> {
    let first_table = document.tables.is_empty();
    let series = || data.columns.iter().flat_map(|it| &it.series);
    let unit =
        series().find(|it| Name::parse(&it.name).is_some_and(|name| name.measure == measure));
    let unit = unit.map(|it| it.unit.as_str()).unwrap_or_default();
    let title = if unit.is_empty() { measure.to_owned() } else { format!("{measure}, {unit}") };
    let mut table = Table { head: head(data, &title), rows: Vec::new() };
    let rows = rows(series().map(|it| &it.name), measure);
    let cells: Vec<Vec<Option<Interval>>> = rows.iter().map(|row| intervals(data, row)).collect();
    for (at, row) in rows.iter().enumerate() {
        let mut texts = vec![row.situation.clone(), row.variant.clone()];
        for (column, cell) in cells[at].iter().enumerate() {
            let base = match by_column(data.experiment) {
                true => cells[at].iter().position(Option::is_some).map(|first| (at, first)),
                false => {
                    let first = rows.iter().position(|it| it.situation == row.situation);
                    first.map(|first| (first, column))
                }
            };
            let base = base.filter(|base| *base != (at, column) && data.rounds >= RUNS_TO_COMPARE);
            let base = base.and_then(|(row, column)| cells[row][column]);
            texts.push(cell_text(*cell, base));
        }
        table.rows.push(texts);
    }
    if first_table {
        for (title, points) in compared(data, &rows, &cells) {
            document.plots.push(bench::plot_intervals(&format!("{measure}: {title}"), &points)?);
        }
    }
    document.tables.push(table);
    Ok(())
}

fn intervals(data: &Data, row: &Name) -> Vec<Option<Interval>> {
    let name = Name::text(&row.situation, &row.variant, &row.measure);
    let of = |values: &[f64]| bench::bootstrap_median(values);
    data.columns.iter().map(|column| column.values(&name).and_then(of)).collect()
}

fn cell_text(cell: Option<Interval>, base: Option<Interval>) -> String {
    let Some(cell) = cell else { return "-".to_owned() };
    match base {
        Some(base) => format!("{}; {}", bench::interval(&cell), cell.against(&base)),
        None => bench::interval(&cell),
    }
}

/// What stands beside each other in a picture.
fn compared(
    data: &Data,
    rows: &[Name],
    cells: &[Vec<Option<Interval>>],
) -> Vec<(String, Vec<(String, Interval)>)> {
    let labels = || data.columns.iter().map(|column| &column.label);
    let mut pictures: Vec<(String, Vec<(String, Interval)>)> = Vec::new();
    for (row, cells) in rows.iter().zip(cells) {
        for (label, cell) in labels().zip(cells) {
            let Some(cell) = cell else { continue };
            let (title, point) = match by_column(data.experiment) {
                true => (format!("{}, {}", row.situation, row.variant), label.clone()),
                false => (format!("{}, {label}", row.situation), row.variant.clone()),
            };
            match pictures.iter_mut().find(|(other, _)| *other == title) {
                Some((_, points)) => points.push((point, *cell)),
                None => pictures.push((title, vec![(point, *cell)])),
            }
        }
    }
    pictures
}

/// A table of the percentiles of all rounds together.
fn percentiles(data: &Data, measure: &str) -> Result<Table, String> {
    let names: Vec<_> = QUOTED.iter().map(|(name, _)| *name).collect();
    let title = format!("{measure}, us: {}", names.join(" / "));
    let mut table = Table { head: head(data, &title), rows: Vec::new() };
    let names = data.columns.iter().flat_map(|it| &it.histograms).map(|it| &it.name);
    for row in rows(names, measure) {
        let name = Name::text(&row.situation, &row.variant, &row.measure);
        let mut texts = vec![row.situation, row.variant];
        for column in &data.columns {
            texts.push(match column.latencies(&name) {
                Some(latencies) => quotes(&latencies?),
                None => "-".to_owned(),
            });
        }
        table.rows.push(texts);
    }
    Ok(table)
}

fn quotes(latencies: &Latencies) -> String {
    let quoted = QUOTED.iter().map(|(_, parts)| latencies.quote(*parts).text());
    quoted.collect::<Vec<_>>().join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::data::{ColumnData, FORMAT};

    fn data(experiment: Experiment) -> Data {
        let column = |label: &str, factor: f64| {
            let mut column = ColumnData {
                label: label.to_owned(),
                driver: "epoll".to_owned(),
                ..ColumnData::default()
            };
            for round in 0..6 {
                let mut run = bench::Run::new("x", label, &());
                let value = factor * (100.0 + f64::from(round));
                run.figure("s; first; speed", value, "/s");
                run.figure("s; second; speed", 3.0 * value, "/s");
                run.figure("s; second; share", value, "");
                column.add(&run).unwrap();
            }
            column
        };
        Data {
            format: FORMAT,
            experiment,
            command: vec!["lab".to_owned()],
            machine: bench::Machine::default(),
            rounds: 6,
            facts: vec!["A fact.".to_owned()],
            columns: vec![column("one", 1.0), column("two", 2.0)],
        }
    }

    #[test]
    fn variants_are_compared_within_a_column() {
        let document = document(&data(Experiment::Locks)).unwrap();
        let (first, second) = (&document.tables[0].rows[0], &document.tables[0].rows[1]);
        assert_eq!(document.tables[0].head, ["speed, /s", "variant", "one", "two"]);
        assert!(!first[2].contains('x') && !first[3].contains('x'), "{first:?}");
        assert!(second[2].contains("; x3.00") && second[3].contains("; x3.00"), "{second:?}");
        assert_eq!(document.tables[1].rows.len(), 1);
        assert_eq!(document.plots.len(), 2, "one for each column");
    }

    #[test]
    fn columns_are_compared_within_a_row() {
        let document = document(&data(Experiment::Echo)).unwrap();
        let second = &document.tables[0].rows[1];
        assert!(!second[2].contains('x') && second[3].contains("; x2.00"), "{second:?}");
        assert_eq!(document.plots.len(), 2, "one for each row");
    }
}
