//! Pages as HTML: one file, nothing loaded from elsewhere.

use super::{Document, Table};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;\
padding:0 1rem;color:#222;background:#fff}table{border-collapse:collapse;margin:1rem 0;\
display:block;overflow-x:auto}th,td{border:1px solid #ccc;padding:.25rem .6rem;text-align:left;\
font-variant-numeric:tabular-nums}th{background:#f3f3f3}pre{background:#f6f6f6;padding:.8rem;\
overflow-x:auto}svg{max-width:100%;height:auto}";

/// The whole page.
pub fn page(documents: &[Document]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Measurements</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>Measurements</h1>\n"
    );
    for document in documents {
        page += &format!("<h2>{}</h2>\n", escape(&document.title));
        for paragraph in &document.paragraphs {
            page += &format!("<p>{}</p>\n", escape(paragraph));
        }
        document.tables.iter().for_each(|it| table(&mut page, it));
        for plot in &document.plots {
            page += &format!("<figure>{plot}</figure>\n");
        }
        if !document.commands.is_empty() {
            page += &format!("<pre>{}</pre>\n", escape(&document.commands.join("\n")));
        }
    }
    page + "</body>\n</html>\n"
}

fn table(page: &mut String, table: &Table) {
    let row = |cells: &[String], tag: &str| {
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    *page += "<table>\n";
    *page += &row(&table.head, "th");
    table.rows.iter().for_each(|cells| *page += &row(cells, "td"));
    *page += "</table>\n";
}

fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            other => escaped.push(other),
        }
    }
    escaped
}
