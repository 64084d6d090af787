//! Pages as Markdown.

use super::{Document, Table};

const BEGIN: &str = "<!-- figures -->";
const END: &str = "<!-- end of figures -->";

/// The whole page.
pub fn page(documents: &[Document]) -> String {
    format!("# Measurements\n{}", sections(documents, "##"))
}

/// `page` with the sections in the place that it has for them; `None` when it has none.
pub fn insert(page: &str, documents: &[Document]) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    let sections = sections(documents, "###");
    Some(format!("{before}{BEGIN}\n{sections}\n{END}{after}"))
}

fn sections(documents: &[Document], level: &str) -> String {
    let mut page = String::new();
    for document in documents {
        page += &format!("\n{level} {}\n", escape(&document.title));
        for paragraph in &document.paragraphs {
            page += &format!("\n{}\n", escape(paragraph));
        }
        for it in &document.tables {
            page.push('\n');
            table(&mut page, it);
        }
        if !document.commands.is_empty() {
            page += &format!("\n```\n{}\n```\n", document.commands.join("\n"));
        }
    }
    page
}

fn table(page: &mut String, table: &Table) {
    let mut line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|cell| escape(cell)).collect();
        *page += &format!("| {} |\n", cells.join(" | "));
    };
    line(&table.head);
    line(&vec!["---".to_owned(); table.head.len()]);
    table.rows.iter().for_each(|row| line(row));
}

fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if matches!(character, '|' | '<' | '*' | '_' | '`') {
            escaped.push('\\');
        }
        escaped.push(if character == '\n' { ' ' } else { character });
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cannot_break_the_table() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let table = Table { head: row(["a|b", "c"]), rows: vec![row(["1\n2", "<b>"])] };
        let document = Document { title: "T".into(), tables: vec![table], ..Document::default() };
        let page = page(std::slice::from_ref(&document));
        let old = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = insert(&old, &[document]).unwrap();
        assert!(new.starts_with(&format!("before\n{BEGIN}\n\n### T\n")), "{new}");
        assert!(new.ends_with(&format!("<b> |\n\n{END}\nafter\n")), "{new}");
        assert!(!new.contains("old") && insert("no place", &[]).is_none());
        assert!(page.ends_with("| a\\|b | c |\n| --- | --- |\n| 1 2 | \\<b> |\n"), "{page}");
    }
}
