//! Draws a stacked bar per server: the bytes per key, split into payload, headers, index and rounding.

use ::capacity::plan::CapacityPlan;
use anyhow::Result;
use plotters::prelude::*;

const CHART_SIZE: (u32, u32) = (720, 420);
const BAR_PARTS: [(&str, RGBColor); 4] = [
    ("payload", RGBColor(0x2b, 0x6c, 0xb0)),
    ("headers", RGBColor(0x68, 0xa3, 0x57)),
    ("index", RGBColor(0xe0, 0xa0, 0x30)),
    ("rounding", RGBColor(0xb0, 0xb0, 0xb0)),
];

/// Draws the chart as SVG.
pub(super) fn draw_svg(plans: &[CapacityPlan]) -> Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, CHART_SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let most = plans.iter().map(|answer| answer.per_key.total()).fold(1.0, f64::max);
        let mut chart = ChartBuilder::on(&root)
            .caption("Bytes per key", ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(30)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..plans.len() as f64, 0.0..most * 1.1)?;
        let name = |at: &f64| {
            plans
                .get(at.floor() as usize)
                .filter(|_| at.fract() == 0.5)
                .map_or_else(String::new, |a| a.server.to_owned())
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(plans.len() * 2 + 1)
            .x_label_formatter(&name)
            .draw()?;
        let mut bases = vec![0.0; plans.len()];
        for (part, (label, colour)) in BAR_PARTS.iter().enumerate() {
            let bars: Vec<_> = plans
                .iter()
                .enumerate()
                .map(|(index, answer)| {
                    let parts = answer.per_key;
                    let height = [parts.payload, parts.headers, parts.index, parts.rounding][part];
                    let (from, left) = (bases[index], index as f64);
                    bases[index] += height;
                    Rectangle::new([(left + 0.2, from), (left + 0.8, from + height)], colour.filled())
                })
                .collect();
            let colour = *colour;
            chart
                .draw_series(bars)?
                .label(*label)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE)
            .draw()?;
        root.present()?;
    }
    Ok(text)
}
