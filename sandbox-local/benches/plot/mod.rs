//! A bar chart as SVG.

use std::fmt::Write as _;

/// One bar: a ratio, and the most it is meant to be.
pub(crate) struct Bar {
    /// What was compared.
    pub(crate) label: String,
    /// Ours through the peer's.
    pub(crate) ratio: f64,
    /// The aim, if there is one.
    pub(crate) aim: Option<f64>,
}

/// The chart. A bar is green where the aim is met, orange where it is missed and grey where there is none; the tick is the aim.
pub(crate) fn svg(title: &str, bars: &[Bar]) -> String {
    const LEFT: f64 = 420.0;
    const WIDE: f64 = 420.0;
    const STEP: f64 = 26.0;
    let most = bars.iter().map(|b| b.ratio.max(b.aim.unwrap_or(0.0))).fold(1.0, f64::max);
    let x = |ratio: f64| LEFT + ratio / most * WIDE;
    let height = 60.0 + STEP * bars.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"920\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"12\" y=\"24\" font-size=\"16\">{title}</text>\n"
    );
    for (row, bar) in bars.iter().enumerate() {
        let y = 44.0 + STEP * row as f64;
        let colour = match bar.aim {
            Some(aim) if bar.ratio <= aim => "#4a9d5b",
            Some(_) => "#d9822b",
            None => "#8a8f98",
        };
        let _ = write!(
            out,
            "<text x=\"{lx}\" y=\"{ty}\" text-anchor=\"end\">{label}</text>\n\
             <rect x=\"{LEFT}\" y=\"{y}\" width=\"{w:.1}\" height=\"16\" fill=\"{colour}\"/>\n\
             <text x=\"{vx:.1}\" y=\"{ty}\">{ratio:.2}</text>\n",
            label = escape(&bar.label),
            lx = LEFT - 8.0,
            ty = y + 13.0,
            w = x(bar.ratio) - LEFT,
            vx = x(bar.ratio.max(bar.aim.unwrap_or(0.0))) + 6.0,
            ratio = bar.ratio,
        );
        if let Some(aim) = bar.aim {
            let (ax, y0, y1) = (x(aim), y - 3.0, y + 19.0);
            let _ = writeln!(out, "<line x1=\"{ax:.1}\" x2=\"{ax:.1}\" y1=\"{y0}\" y2=\"{y1}\" stroke=\"black\"/>");
        }
    }
    out.push_str("</svg>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
