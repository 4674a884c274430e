//! Draws allocation and fragmentation against the arrived load, as SVG.

use std::fmt::Write as _;

use crate::report::Summary;

/// One colour for each line, also for colour-blind readers (Okabe and Ito).
const COLOURS: [&str; 8] = [
    "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999",
];
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 34.0;
/// From one panel's top to the next one's.
const PANEL: f64 = 372.0;

/// One panel: a title, the highest value and a curve for each policy.
struct Panel<'a> {
    top: f64,
    title: &'static str,
    highest: f64,
    load: f64,
    curves: Vec<&'a [Option<f64>]>,
}

/// The whole file.
pub fn svg(summaries: &[Summary]) -> String {
    let columns = summaries.iter().map(|s| s.allocated_curve.len()).max();
    let load = number(columns.unwrap_or(2).max(2) - 1);
    let lost = summaries
        .iter()
        .flat_map(|s| s.fragmentation_curve.iter().flatten());
    let most_lost = lost.fold(1.0_f64, |most, value| most.max(*value));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        LEFT + WIDTH + 150.0,
        2.0 * PANEL + 20.0,
    );
    let panels = [
        Panel {
            top: TOP,
            title: "GPU in use, % of all GPUs",
            highest: 100.0,
            load,
            curves: summaries
                .iter()
                .map(|s| s.allocated_curve.as_slice())
                .collect(),
        },
        Panel {
            top: TOP + PANEL,
            title: "fragmentation, % of all GPUs",
            highest: (most_lost / 5.0).ceil() * 5.0,
            load,
            curves: summaries
                .iter()
                .map(|s| s.fragmentation_curve.as_slice())
                .collect(),
        },
    ];
    for panel in &panels {
        panel.draw(&mut text);
        legend(&mut text, panel.top, summaries);
    }
    text.push_str("</svg>\n");
    text
}

fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(0.0, f64::from)
}

impl Panel<'_> {
    fn x(&self, load: f64) -> f64 {
        LEFT + load / self.load * WIDTH
    }

    fn y(&self, value: f64) -> f64 {
        self.top + HEIGHT - value / self.highest * HEIGHT
    }

    fn draw(&self, text: &mut String) {
        let (title, top) = (self.title, self.top - 12.0);
        let _ = writeln!(
            text,
            "<text x=\"{LEFT}\" y=\"{top}\" font-weight=\"bold\">{title}</text>"
        );
        for step in 0..=5_u32 {
            let value = self.highest * f64::from(step) / 5.0;
            let (y, right) = (self.y(value), LEFT + WIDTH);
            let _ = writeln!(
                text,
                "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#dddddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value:.0}</text>",
                LEFT - 6.0,
                y + 4.0,
            );
        }
        let bottom = self.top + HEIGHT;
        let marks = (0..).map(|step| f64::from(step) * 10.0);
        for load in marks.take_while(|load| *load <= self.load) {
            let x = self.x(load);
            let _ = writeln!(
                text,
                "<path d=\"M{x:.1} {bottom}v4\" stroke=\"#000000\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{load:.0}</text>",
                bottom + 17.0,
            );
        }
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">arrived load, % of all GPUs</text>",
            LEFT + WIDTH / 2.0,
            bottom + 34.0,
        );
        for (at, curve) in self.curves.iter().enumerate() {
            let points: Vec<String> = curve
                .iter()
                .enumerate()
                .filter_map(|(load, value)| Some((self.x(number(load)), self.y((*value)?))))
                .map(|(x, y)| format!("{x:.1},{y:.1}"))
                .collect();
            let colour = COLOURS[at % COLOURS.len()];
            let _ = writeln!(
                text,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>",
                points.join(" "),
            );
        }
    }
}

fn legend(text: &mut String, top: f64, summaries: &[Summary]) {
    let x = LEFT + WIDTH + 14.0;
    for (at, summary) in summaries.iter().enumerate() {
        let y = top + 10.0 + number(at) * 18.0;
        let _ = writeln!(
            text,
            "<path d=\"M{x} {y}h22\" stroke=\"{}\" stroke-width=\"3\"/><text x=\"{}\" y=\"{}\">{}</text>",
            COLOURS[at % COLOURS.len()],
            x + 28.0,
            y + 4.0,
            summary.policy,
        );
    }
}
