//! A bar chart as SVG.

use std::fmt::Write as _;

/// One bar: a ratio, and the most it is meant to be.
pub(crate) struct Bar {
    /// What was compared.
    pub(crate) label: String,
    /// Ours through the peer's.
    pub(crate) ratio: f64,
    /// The aim.
    pub(crate) aim: f64,
}

/// The chart. A bar is green where the aim is met and orange where it is missed; the tick is the aim.
pub(crate) fn svg(title: &str, bars: &[Bar]) -> String {
    const LEFT: f64 = 420.0;
    const WIDE: f64 = 420.0;
    const STEP: f64 = 26.0;
    let most = bars.iter().map(|b| b.ratio.max(b.aim)).fold(1.0, f64::max);
    let x = |ratio: f64| LEFT + ratio / most * WIDE;
    let height = 60.0 + STEP * bars.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"920\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"12\" y=\"24\" font-size=\"16\">{title}</text>\n"
    );
    for (row, bar) in bars.iter().enumerate() {
        let y = 44.0 + STEP * row as f64;
        let (colour, label) = (if bar.ratio <= bar.aim { "#4a9d5b" } else { "#d9822b" }, escape(&bar.label));
        let _ = write!(
            out,
            "<text x=\"{lx}\" y=\"{ty}\" text-anchor=\"end\">{label}</text>\n\
             <rect x=\"{LEFT}\" y=\"{y}\" width=\"{w:.1}\" height=\"16\" fill=\"{colour}\"/>\n\
             <line x1=\"{ax:.1}\" x2=\"{ax:.1}\" y1=\"{y0}\" y2=\"{y1}\" stroke=\"black\"/>\n\
             <text x=\"{vx:.1}\" y=\"{ty}\">{ratio:.2}</text>\n",
            lx = LEFT - 8.0,
            ty = y + 13.0,
            w = x(bar.ratio) - LEFT,
            ax = x(bar.aim),
            y0 = y - 3.0,
            y1 = y + 19.0,
            vx = x(bar.ratio.max(bar.aim)) + 6.0,
            ratio = bar.ratio,
        );
    }
    out.push_str("</svg>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
