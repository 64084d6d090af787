//! Results as pages. A page is built once, as a [`Document`], and written as Markdown and as HTML.

pub mod html;
pub mod markdown;
pub mod plot;
pub mod text;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::make_folder;
use crate::compare::model::Case;
use crate::compare::{Comparison, summary};
use crate::latency::{Latencies, QUOTED, format_us};
use crate::result::{File, Run};
use crate::stats::{Interval, RUNS_TO_COMPARE, RUNS_TO_RESAMPLE, bootstrap_median};
pub use text::number;

/// Arguments of `report`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Folder with result files (*.json).
    pub dir: PathBuf,
    /// Where report.md and report.html go [default: the same folder].
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Writes the text and tables into this Markdown page as well, between its lines
    /// `<!-- figures -->` and `<!-- end of figures -->`.
    #[arg(long)]
    pub page: Option<PathBuf>,
    /// Writes the comparisons there as well, with one histogram of all rounds instead of one of each,
    /// and the pages there instead.
    #[arg(long, conflicts_with = "out")]
    pub keep: Option<PathBuf>,
}

/// A section of a page.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// Its heading.
    pub title: String,
    /// Text, as it is: no markup.
    pub paragraphs: Vec<String>,
    /// Tables, below the text.
    pub tables: Vec<Table>,
    /// SVG pictures, for pages that can show them.
    pub plots: Vec<String>,
    /// Exact commands.
    pub commands: Vec<String>,
}

/// A table; every row is as long as the head.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Names of the columns.
    pub head: Vec<String>,
    /// Cells, as text.
    pub rows: Vec<Vec<String>>,
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), String> {
    let out = args.keep.as_deref().or(args.out.as_deref()).unwrap_or(&args.dir);
    make_folder(out)?;
    if args.keep.is_some() {
        for (path, file) in files(&args.dir)? {
            if let (File::Comparison(it), Some(name)) = (file, path.file_name()) {
                File::Comparison(Box::new(it.pruned()?)).write(&out.join(name))?;
            }
        }
    }
    let documents = read(args.keep.as_deref().unwrap_or(&args.dir))?;
    write_pages(&documents, out)?;
    args.page.as_deref().map_or(Ok(()), |page| write_into(page, &documents))
}

/// Puts the text and tables into a Markdown page, in the place that it has for them.
pub fn write_into(page: &Path, documents: &[Document]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", page.display());
    let old = fs::read_to_string(page).map_err(failed)?;
    let new = markdown::insert(&old, documents);
    let new = new.ok_or_else(|| format!("{} has no place for it", page.display()))?;
    fs::write(page, new).map_err(failed)?;
    eprintln!("wrote {}", page.display());
    Ok(())
}

/// Reads all results of `dir` and writes both pages to `out`.
pub fn write(dir: &Path, out: &Path) -> Result<(), String> {
    write_pages(&read(dir)?, out)
}

/// Writes report.md and report.html to `out`, which must exist.
pub fn write_pages(documents: &[Document], out: &Path) -> Result<(), String> {
    for (name, page) in
        [("report.md", markdown::page(documents)), ("report.html", html::page(documents))]
    {
        let path = out.join(name);
        fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// All results of a folder, by name.
fn files(dir: &Path) -> Result<Vec<(PathBuf, File)>, String> {
    let entries = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "json"));
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        match File::read(&path)? {
            Some(file) => files.push((path, file)),
            None => eprintln!("{}: no result of this program, left out", path.display()),
        }
    }
    Ok(files)
}

fn read(dir: &Path) -> Result<Vec<Document>, String> {
    let mut documents = Vec::new();
    let mut groups: BTreeMap<(String, String), Vec<Run>> = BTreeMap::new();
    for (_, file) in files(dir)? {
        match file {
            File::Comparison(it) => documents.push(comparison(&it)?),
            File::Run(run) => {
                let key = (run.scenario.clone(), run.label.clone());
                groups.entry(key).or_default().push(*run);
            }
        }
    }
    for runs in groups.values() {
        documents.push(repetitions(runs)?);
    }
    if documents.is_empty() {
        return Err(format!("{} has no result files", dir.display()));
    }
    Ok(documents)
}

/// A comparison.
pub fn comparison(it: &Comparison) -> Result<Document, String> {
    let mut document = Document { title: it.title.clone(), ..Document::default() };
    document.paragraphs = vec![
        it.load.clone(),
        format!("{} rounds, the columns in turn. {}", it.rounds, it.machine.text()),
        "Fixed rates are open loop, each latency from when the message was due. Cells: median of \
         the rounds (95 % bootstrap interval). Where the interval touches that of the first column, \
         no difference has been shown."
            .to_owned(),
    ];
    let comparable = it.rounds >= RUNS_TO_COMPARE;
    if it.rounds < RUNS_TO_RESAMPLE {
        let nothing = if comparable { "" } else { ", and nothing is compared" };
        document.paragraphs.push(format!(
            "With {} rounds the interval is the range, less sure than 95 %{nothing}.",
            it.rounds
        ));
    }
    document.paragraphs.extend(it.notes.iter().cloned());
    let labels: Vec<String> = it.columns.iter().map(|column| column.label.clone()).collect();
    let head = |first: &str| {
        let mut head = vec![first.to_owned()];
        head.extend(labels.iter().cloned());
        head
    };
    let mut table = Table { head: head("figure"), rows: Vec::new() };
    for metric in summary::metrics(it) {
        let mut row = vec![with_unit(&metric.name, &metric.unit)];
        let first = metric.cells.first().copied();
        for (at, cell) in metric.cells.iter().enumerate() {
            let against = first
                .filter(|_| at > 0 && comparable)
                .map(|first| format!("; {}", cell.against(&first)));
            row.push(interval(cell) + &against.unwrap_or_default());
        }
        if metric.drawn {
            let points: Vec<_> = labels.iter().cloned().zip(metric.cells.iter().copied()).collect();
            document.plots.push(plot::intervals(&row[0], &points)?);
        }
        table.rows.push(row);
    }
    document.tables.push(table);
    for case in &it.cases {
        if let Some(histogram) = &case.histogram {
            let mut merged = Vec::new();
            for (at, label) in labels.iter().enumerate() {
                merged.push((label.clone(), case.merged(at)?));
            }
            let name = format!("{histogram}, {}, all rounds, us", case.label);
            document.tables.push(latency_table(&name, &merged));
            document.plots.push(plot::tails(&format!("{histogram}, {}", case.label), &merged)?);
        }
        steps(case, head(&format!("step, {}: p50 / p99 / max, us", case.label)), &mut document)?;
    }
    for (at, column) in it.columns.iter().enumerate() {
        let runs = it.cases.iter().filter_map(|case| case.runs.get(at)).flatten();
        let doubts: Vec<_> = runs.flat_map(|run| &run.doubts).collect();
        if let Some(first) = doubts.first() {
            let count = doubts.len();
            document.paragraphs.push(format!("{}: {count} notes, first: {first}", column.label));
        }
        let (command, version) = (column.command.join(" "), &column.version);
        document.commands.push(format!("{command}    # {version}; {}", column.ready.trim()));
    }
    document.commands.push(it.command.join(" "));
    Ok(document)
}

/// The steps that took any time, by the broker's own clock: a table and a picture.
fn steps(case: &Case, head: Vec<String>, document: &mut Document) -> Result<(), String> {
    let [p50, p99, max] = ["p50", "p99", "max"].map(|percentile| summary::steps(case, percentile));
    let text = |cell: Option<Interval>| cell.map_or("-".to_owned(), |it| number(it.median));
    let row =
        |at: usize| {
            let mut row = vec![p99[at].step.clone()];
            let columns = 0..p99[at].cells.len();
            row.extend(columns.map(|column| {
                [&p50, &p99, &max].map(|all| text(all[at].cells[column])).join(" / ")
            }));
            row
        };
    let rows: Vec<_> = (0..p99.len()).map(row).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let bars = |step: &summary::StepMetric| {
        let bars = step.cells.iter().map(|cell| cell.map(|it| it.median)).collect();
        (step.step.clone(), bars)
    };
    let groups: Vec<_> = p99.iter().map(bars).collect();
    let title = format!("p99 of the broker's steps, {}", case.label);
    document.plots.push(plot::groups(&title, "us", &head[1..], &groups)?);
    document.tables.push(Table { head, rows });
    Ok(())
}

/// Runs of one scenario with one label.
fn repetitions(runs: &[Run]) -> Result<Document, String> {
    let Some(first) = runs.first() else { return Ok(Document::default()) };
    let label = if first.label.is_empty() { String::new() } else { format!(": {}", first.label) };
    let mut document = Document {
        title: format!("{}{label}", first.scenario),
        paragraphs: vec![format!("{} run(s). {}", runs.len(), first.machine.text())],
        ..Document::default()
    };
    let mut table = Table { head: vec!["figure".to_owned(), "value".to_owned()], rows: Vec::new() };
    for figure in &first.figures {
        let values: Vec<f64> = runs.iter().filter_map(|run| run.value(&figure.name)).collect();
        let cell = match bootstrap_median(&values) {
            Some(cell) if runs.len() > 1 => interval(&cell),
            _ => number(figure.value),
        };
        table.rows.push(vec![with_unit(&figure.name, &figure.unit), cell]);
    }
    document.tables.push(table);
    let mut merged: Vec<(String, Latencies)> = Vec::new();
    for histogram in &first.histograms {
        let mut all = Latencies::new();
        for run in runs {
            if let Some(latencies) = run.latencies(&histogram.name) {
                all.merge(&latencies?)?;
            }
        }
        merged.push((format!("{}, {}", histogram.name, histogram.what), all));
    }
    if !merged.is_empty() {
        document.tables.push(latency_table("latency, us", &merged));
        document.plots.push(plot::tails(&document.title, &merged)?);
    }
    for (number, run) in runs.iter().enumerate() {
        let name = if runs.len() > 1 { format!("run {}: ", number + 1) } else { String::new() };
        let problems = run.problems.iter().map(|it| format!("{name}problem: {it}"));
        document.paragraphs.extend(problems);
        document.paragraphs.extend(run.doubts.iter().map(|it| format!("{name}note: {it}")));
        document.commands.push(run.command.join(" "));
    }
    document.commands.dedup();
    Ok(document)
}

/// The percentiles that may be quoted, a row for each.
pub fn latency_table(name: &str, all: &[(String, Latencies)]) -> Table {
    let mut head = vec![name.to_owned()];
    head.extend(QUOTED.iter().map(|(name, _)| (*name).to_owned()));
    head.extend(["largest", "samples", "missing"].map(str::to_owned));
    let row = |(name, latencies): &(String, Latencies)| {
        let mut row = vec![name.clone()];
        row.extend(QUOTED.iter().map(|(_, parts)| latencies.quote(*parts).text()));
        row.push(format_us(latencies.max_ns()));
        row.extend([latencies.count().to_string(), latencies.missing.to_string()]);
        row
    };
    Table { head, rows: all.iter().map(row).collect() }
}

/// A cell: the median and its interval.
pub fn interval(it: &Interval) -> String {
    format!("{} ({}-{})", number(it.median), number(it.low), number(it.high))
}

fn with_unit(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name}, {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::summary::tests::comparison as example;

    #[test]
    fn a_folder_becomes_two_pages() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        File::Comparison(Box::new(example(2.0))).write(&file("comparison.json")).unwrap();
        let runs = example(1.0).cases[1].runs[0].clone();
        for (number, mut run) in runs.into_iter().enumerate() {
            run.problems.push("3 messages lost".to_owned());
            File::Run(Box::new(run)).write(&file(&format!("run{number}.json"))).unwrap();
        }
        fs::write(file("other.json"), "{}").unwrap();
        write(folder.path(), folder.path()).unwrap();
        let page = fs::read_to_string(file("report.md")).unwrap();
        assert!(page.contains("; x0.50 ("), "{page}");
        assert!(page.contains("| second \\<&> |"), "{page}");
        assert!(page.contains("4 run(s)"), "repetitions are one section");
        assert!(page.contains("run 2: problem: 3 messages lost"));
        assert!(page.contains("80000"), "merged before it is quoted");
        let page = fs::read_to_string(file("report.html")).unwrap();
        // Three figures, the tail and the steps of the comparison, and the tail of the repetitions.
        assert_eq!(page.matches("<svg").count(), 6);
        assert_eq!(page.matches("</svg>").count(), 6);
        assert!(page.contains("second &lt;&amp;&gt;") && !page.contains("second <&>"));
        assert!(
            !page.contains("http://")
                || page.matches("http").count()
                    == page.matches("http://www.w3.org/2000/svg").count(),
            "self-contained"
        );
    }

    #[test]
    fn the_same_twice_shows_no_difference() {
        let document = comparison(&example(1.005)).unwrap();
        let cells = document.tables[0].rows.iter().map(|row| &row[2]);
        assert!(cells.clone().count() > 3);
        cells.for_each(|cell| assert!(cell.contains("no difference shown"), "{cell}"));
        let few = comparison(&Comparison { rounds: 3, ..example(2.0) }).unwrap();
        let cells = few.tables[0].rows.iter().map(|row| &row[2]);
        cells.for_each(|cell| assert!(!cell.contains("; "), "too few to compare: {cell}"));
    }

    #[test]
    fn what_is_kept_fills_the_place_in_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        File::Comparison(Box::new(example(2.0))).write(&at("comparison.json")).unwrap();
        fs::write(at("page.md"), "# Head\n<!-- figures -->\n<!-- end of figures -->\n").unwrap();
        let (keep, page) = (Some(at("kept")), Some(at("page.md")));
        let args = Args { dir: folder.path().to_path_buf(), out: None, page, keep };
        run(&args).unwrap();
        let page = fs::read_to_string(at("page.md")).unwrap();
        assert!(page.starts_with("# Head\n") && page.contains("| p99 of delivery"), "{page}");
        run(&Args { dir: at("kept"), keep: None, ..args.clone() }).unwrap();
        assert_eq!(fs::read_to_string(at("page.md")).unwrap(), page, "kept files show the same");
        fs::write(at("page.md"), "no place").unwrap();
        assert!(run(&args).unwrap_err().contains("no place"));
    }

    #[test]
    fn an_empty_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).unwrap_err().contains("no result files"));
    }
}
