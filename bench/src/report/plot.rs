//! Pictures, as SVG.

use std::fmt::Display;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::latency::Latencies;
use crate::stats::Interval;

const SIZE: (u32, u32) = (900, 420);
/// Room for long names that stand upright.
const LABELS_BELOW: u32 = 190;
/// Where the median lies on the axis of percentiles: one in two is beyond.
const MEDIAN: f64 = std::f64::consts::LOG10_2;
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x17, 0xbe, 0xcf),
];

/// Where a picture is drawn.
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Bars of one group, a bar for each column; `None` where there is nothing.
pub type Group = (String, Vec<Option<f64>>);

/// Latency over percentile, both on scales that show the tail. A curve ends where fewer than 100
/// samples lie beyond.
pub fn tails(title: &str, all: &[(String, Latencies)]) -> Result<String, String> {
    let curves: Vec<(&str, Vec<(f64, f64)>)> = all
        .iter()
        .map(|(label, latencies)| {
            let points = latencies.tail();
            let points = points.iter().map(|(beyond, ns)| (-beyond.log10(), *ns as f64 / 1e3));
            (label.as_str(), points.collect())
        })
        .collect();
    let points = || curves.iter().flat_map(|(_, points)| points);
    let last = points().map(|point| point.0).fold(2.0, f64::max);
    let (low, high) = log_range(points().map(|point| point.1));
    picture(|root| {
        let mut chart = base(root, title)
            .build_cartesian_2d(MEDIAN..last + 0.1, (low..high).log_scale())
            .map_err(text)?;
        chart
            .configure_mesh()
            .x_desc("percentile")
            .y_desc("us")
            .x_label_formatter(&|nines| percentile(*nines))
            .max_light_lines(0)
            .y_label_formatter(&|us| format!("{us}"))
            .draw()
            .map_err(text)?;
        for (at, (label, points)) in curves.iter().enumerate() {
            let colour = colour(at);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))
                .map_err(text)?
                .label(*label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()
            .map_err(text)
    })
}

/// Medians with their intervals, side by side.
pub fn intervals(title: &str, points: &[(String, Interval)]) -> Result<String, String> {
    let high = points.iter().map(|(_, it)| it.high).fold(f64::MIN_POSITIVE, f64::max);
    let labels: Vec<&str> = points.iter().map(|(label, _)| label.as_str()).collect();
    picture(|root| {
        let mut chart = base(root, title)
            .build_cartesian_2d(0.0..points.len() as f64, 0.0..high * 1.15)
            .map_err(text)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(0)
            .y_label_formatter(&|value| super::text::number(*value))
            .x_labels(2 * points.len() + 1)
            .x_label_formatter(&|at| middle(&labels, *at))
            .draw()
            .map_err(text)?;
        for (at, (_, it)) in points.iter().enumerate() {
            let (colour, x) = (colour(at), at as f64 + 0.5);
            let bar =
                Rectangle::new([(x - 0.25, 0.0), (x + 0.25, it.median)], colour.mix(0.5).filled());
            chart.draw_series([bar]).map_err(text)?;
            let whisker = ErrorBar::new_vertical(x, it.low, it.median, it.high, BLACK.filled(), 12);
            chart.draw_series([whisker]).map_err(text)?;
        }
        Ok(())
    })
}

/// Groups of bars on a logarithmic scale, with what the columns are in the legend.
pub fn groups(
    title: &str,
    unit: &str,
    columns: &[String],
    groups: &[Group],
) -> Result<String, String> {
    let values = groups.iter().flat_map(|(_, bars)| bars.iter().flatten().copied());
    let (low, high) = log_range(values.filter(|value| *value > 0.0));
    let labels: Vec<&str> = groups.iter().map(|(label, _)| label.as_str()).collect();
    let width = 0.8 / columns.len().max(1) as f64;
    picture(|root| {
        let mut chart = base(root, title)
            .x_label_area_size(LABELS_BELOW)
            .build_cartesian_2d(0.0..groups.len() as f64, (low..high).log_scale())
            .map_err(text)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(0)
            .y_desc(unit)
            .y_label_formatter(&|value| format!("{value}"))
            .x_labels(2 * groups.len() + 1)
            .x_label_formatter(&|at| middle(&labels, *at))
            .x_label_style(("sans-serif", 11).into_font().transform(FontTransform::Rotate90))
            .draw()
            .map_err(text)?;
        for (at, label) in columns.iter().enumerate() {
            let colour = colour(at);
            let bars = groups.iter().enumerate().filter_map(|(group, (_, bars))| {
                let value = bars.get(at).copied().flatten().filter(|value| *value > 0.0)?;
                let left = group as f64 + 0.1 + width * at as f64;
                Some(Rectangle::new([(left, low), (left + width, value)], colour.filled()))
            });
            chart.draw_series(bars).map_err(text)?.label(label.as_str()).legend(move |(x, y)| {
                Rectangle::new([(x, y - 4), (x + 12, y + 4)], colour.filled())
            });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()
            .map_err(text)
    })
}

fn picture(draw: impl FnOnce(&Canvas<'_>) -> Result<(), String>) -> Result<String, String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(text)?;
        draw(&root)?;
        root.present().map_err(text)?;
    }
    Ok(svg)
}

fn base<'a, 'b>(root: &'b Canvas<'a>, title: &str) -> ChartBuilder<'b, 'b, SVGBackend<'a>> {
    let mut chart = ChartBuilder::on(root);
    chart.caption(title, ("sans-serif", 18)).margin(10).x_label_area_size(40).y_label_area_size(90);
    chart
}

fn colour(at: usize) -> RGBColor {
    COLOURS[at % COLOURS.len()]
}

/// A range with some room on both sides; some range when there are no values.
fn log_range(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let high = values.clone().fold(1.0, f64::max);
    let low = values.fold(f64::MAX, f64::min);
    (if low < high { (low / 2.0).max(0.1) } else { high / 10.0 }, high * 2.0)
}

/// The label of the place whose middle `at` is.
fn middle(labels: &[&str], at: f64) -> String {
    let number = at.floor();
    let label = labels.get(number as usize).filter(|_| (at - number - 0.5).abs() < 1e-6);
    label.map(|label| (*label).to_owned()).unwrap_or_default()
}

/// The percentile that has one in `10^nines` beyond it, where that is a round one.
fn percentile(nines: f64) -> String {
    if (nines - nines.round()).abs() > 1e-6 || nines < 0.5 {
        return String::new();
    }
    let digits = (nines.round() as usize).saturating_sub(2);
    format!("p{:.digits$}", 100.0 - 100.0 / 10f64.powf(nines))
}

fn text(error: impl Display) -> String {
    format!("cannot draw: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_named_after_percentiles() {
        let names = [MEDIAN, 1.0, 1.5, 2.0, 3.0, 4.0].map(percentile);
        assert_eq!(names, ["", "p90", "", "p99", "p99.9", "p99.99"]);
    }

    #[test]
    fn draws_what_there_is_and_nothing_when_there_is_nothing() {
        let mut latencies = Latencies::new();
        (0..10_000u64).for_each(|sample| latencies.record(sample * 1_000));
        let all = [("a".to_owned(), latencies), ("empty".to_owned(), Latencies::new())];
        let svg = tails("t", &all).unwrap();
        assert!(svg.contains("<polyline") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(tails("t", &[]).unwrap().contains("<svg"));
        assert!(tails("t", &all[1..]).unwrap().contains("<svg"));
        let interval = Interval { low: 1.0, median: 2.0, high: 3.0 };
        let svg = intervals("t", &[("one".to_owned(), interval), ("two".to_owned(), interval)]);
        let svg = svg.unwrap();
        assert!(svg.contains("one") && svg.contains("two"), "{svg}");
        let columns = ["first".to_owned(), "second".to_owned()];
        let step = ("step".to_owned(), vec![Some(3.0), None]);
        let svg = groups("t", "us", &columns, &[step]).unwrap();
        assert!(svg.contains("step") && svg.contains("second"), "{svg}");
        assert!(groups("t", "us", &columns, &[]).unwrap().contains("<svg"));
    }
}
