//! Statistics of few measurements, without assumptions about their distribution.

/// A value with an interval.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Estimate {
    pub value: f64,
    /// Interval with a confidence of at least 95 %; `None` with too few measurements.
    pub interval: Option<(f64, f64)>,
}

/// Significance level.
pub const ALPHA: f64 = 0.05;
/// Largest number of measurements of both sides for which all orders are counted.
const EXACT_MAX: usize = 60;

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[half]
    } else {
        f64::midpoint(sorted[half - 1], sorted[half])
    }
}

/// Median, with an interval between two of the measurements: the number of measurements below the
/// median has a binomial distribution. Six measurements are needed for the interval.
///
/// # Panics
///
/// Without values.
pub fn median(values: &[f64]) -> Estimate {
    let sorted = sorted(values);
    let n = sorted.len();
    // P(fewer than k of n are below the median), for growing k.
    let mut probability = 0.5_f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let mut tail = 0.0;
    let mut rank = None;
    for k in 0..n / 2 {
        tail += probability;
        if 2.0 * tail > ALPHA {
            break;
        }
        rank = Some(k);
        probability *= (n - k) as f64 / (k + 1) as f64;
    }
    Estimate {
        value: middle(&sorted),
        interval: rank.map(|rank| (sorted[rank], sorted[n - 1 - rank])),
    }
}

/// Twice the ranks of all values of both sides, equal values with the mean of their ranks: integers.
fn double_ranks(a: &[f64], b: &[f64]) -> (Vec<usize>, Vec<usize>) {
    let mut order: Vec<(f64, usize)> = a.iter().chain(b).copied().zip(0..).collect();
    order.sort_by(|x, y| x.0.total_cmp(&y.0));
    let mut ranks = vec![0; order.len()];
    let mut begin = 0;
    while begin < order.len() {
        let mut end = begin + 1;
        while end < order.len() && order[end].0.total_cmp(&order[begin].0).is_eq() {
            end += 1;
        }
        for (_, index) in &order[begin..end] {
            // Ranks begin + 1 to end: twice their mean.
            ranks[*index] = begin + 1 + end;
        }
        begin = end;
    }
    let b_ranks = ranks.split_off(a.len());
    (ranks, b_ranks)
}

/// p-value of the two-sided Mann–Whitney test: the probability of a difference of ranks at least as
/// large if both sides have the same distribution. Exact, also with equal values, up to 60
/// measurements.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 1.0;
    }
    let (of_a, of_b) = double_ranks(a, b);
    let (n, m) = (a.len(), b.len());
    let sum: usize = of_a.iter().sum();
    let mean = n * (n + m + 1);
    if n + m > EXACT_MAX {
        return normal_approximation(&of_a, &of_b, sum, mean);
    }
    // Number of ways to choose k ranks with a given sum.
    let all: Vec<usize> = of_a.iter().chain(&of_b).copied().collect();
    let total: usize = all.iter().sum();
    let mut ways = vec![vec![0.0_f64; total + 1]; n + 1];
    ways[0][0] = 1.0;
    for rank in all {
        for k in (1..=n).rev() {
            let (fewer, more) = ways.split_at_mut(k);
            for s in rank..=total {
                more[0][s] += fewer[k - 1][s - rank];
            }
        }
    }
    let distance = sum.abs_diff(mean);
    let of_n = &ways[n];
    let count: f64 = of_n.iter().sum();
    let extreme = of_n
        .iter()
        .enumerate()
        .filter(|(s, _)| s.abs_diff(mean) >= distance);
    (extreme.map(|(_, ways)| ways).sum::<f64>() / count).min(1.0)
}

fn normal_approximation(of_a: &[usize], of_b: &[usize], sum: usize, mean: usize) -> f64 {
    let (n, m) = (of_a.len() as f64, of_b.len() as f64);
    let all = of_a.iter().chain(of_b).map(|rank| *rank as f64);
    let center = n + m + 1.0;
    let variance = all.map(|rank| (rank - center).powi(2)).sum::<f64>();
    // Of the doubled sum of ranks, without replacement.
    let variance = n * m / ((n + m) * (n + m - 1.0)) * variance;
    if variance <= 0.0 {
        return 1.0;
    }
    // Doubled ranks have a distance of 2: half of it corrects for continuity.
    let z = (sum.abs_diff(mean) as f64 - 1.0).max(0.0) / variance.sqrt();
    2.0 * upper_tail(z)
}

/// Probability that a standard normal variable exceeds `z` ≥ 0 (Abramowitz and Stegun 26.2.17; the
/// error is below 8e-8).
fn upper_tail(z: f64) -> f64 {
    const B: [f64; 5] = [
        0.319_381_530,
        -0.356_563_782,
        1.781_477_937,
        -1.821_255_978,
        1.330_274_429,
    ];
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let polynomial = B.iter().rev().fold(0.0, |sum, b| (sum + b) * t);
    (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * polynomial
}

/// Factor from the median of `a` to that of `b`; `None` if one of them is 0. Its interval has the factors
/// that the Mann–Whitney test does not reject, and the factor itself: medians of few values that differ in
/// their spread can have a ratio that the test rejects.
pub fn ratio(a: &[f64], b: &[f64]) -> Option<Estimate> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let value = median(b).value / median(a).value;
    if !(value.is_finite() && value > 0.0) {
        return None;
    }
    Some(Estimate {
        value,
        interval: accepted(a, b).map(|(low, high)| (low.min(value), high.max(value))),
    })
}

/// The factors from `a` to `b` that the Mann–Whitney test does not reject; `None` with too few
/// measurements, and if one is not positive.
fn accepted(a: &[f64], b: &[f64]) -> Option<(f64, f64)> {
    let is_positive = |value: &f64| *value > 0.0 && value.is_finite();
    if !a.iter().chain(b).all(is_positive) {
        return None;
    }
    let ratios = a.iter().flat_map(|a| b.iter().map(move |b| b / a));
    let ratios = sorted(&ratios.collect::<Vec<_>>());
    let rank = rejected(a.len(), b.len())?;
    Some((ratios[rank], ratios[ratios.len() - 1 - rank]))
}

/// Number of smallest ratios that are outside the interval, less one; `None` if even all are not
/// enough for the confidence.
fn rejected(n: usize, m: usize) -> Option<usize> {
    // Number of ways in which U of n and m values without equal ones is u.
    let mut ways = vec![vec![0.0_f64; n * m + 1]; n + 1];
    ways[0][0] = 1.0;
    for larger in 0..n + m {
        for k in (1..=n).rev() {
            // The value at this place is one of the n: it exceeds those of the m before it.
            let before = larger.saturating_sub(k - 1);
            if larger + 1 < k || before > m {
                continue;
            }
            let (fewer, more) = ways.split_at_mut(k);
            for u in before..=n * m {
                more[0][u] += fewer[k - 1][u - before];
            }
        }
    }
    let of_n = &ways[n];
    let count: f64 = of_n.iter().sum();
    let mut tail = 0.0;
    let mut rank = None;
    for (u, ways) in of_n.iter().enumerate() {
        tail += ways / count;
        if 2.0 * tail > ALPHA {
            break;
        }
        rank = Some(u);
    }
    rank
}

/// Corrects p-values so that those at most `ALPHA` have an expected share of at most `ALPHA` of false
/// alarms (Benjamini and Hochberg).
pub fn benjamini_hochberg(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
    let mut corrected = vec![1.0; p.len()];
    let mut last = 1.0_f64;
    for (above, index) in order.into_iter().enumerate() {
        let rank = p.len() - above;
        last = last.min(p[index] * p.len() as f64 / rank as f64);
        corrected[index] = last;
    }
    corrected
}

/// Corrects p-values so that the probability of any false alarm is at most `ALPHA` (Holm). Each test has
/// a share of it in proportion to its weight, which must not depend on what is tested.
pub fn holm(p: &[f64], weights: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    let relative = |index: usize| p[index] / weights[index];
    order.sort_by(|a, b| relative(*a).total_cmp(&relative(*b)));
    let mut corrected = vec![1.0; p.len()];
    let mut last = 0.0_f64;
    for (at, index) in order.iter().enumerate() {
        let remaining: f64 = order[at..].iter().map(|index| weights[*index]).sum();
        // Without weight, nothing can be found.
        let own = relative(*index) * remaining;
        last = last.max(if own.is_nan() { 1.0 } else { own.min(1.0) });
        corrected[*index] = last;
    }
    corrected
}

/// Smallest p-value that a test of this many measurements can have.
pub fn least_p(n: usize, m: usize) -> f64 {
    // Complete separation, in both directions, of all orders.
    let orders = (1..=n).map(|k| (m + k) as f64 / k as f64).product::<f64>();
    (2.0 / orders).min(1.0)
}

/// Smallest number of measurements on each side with which a test at `level` can find a difference.
pub fn least_measurements(level: f64) -> usize {
    (1..1000).find(|n| least_p(*n, *n) <= level).unwrap_or(1000)
}

/// Variance of the logarithms of measurements within both sides; `None` with a single one on each, and
/// if one is not positive.
pub fn log_variance(a: &[f64], b: &[f64]) -> Option<f64> {
    let squares = |values: &[f64]| {
        let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>()
    };
    let degrees = (a.len() + b.len())
        .checked_sub(2)
        .filter(|degrees| *degrees > 0)?;
    let variance = (squares(a) + squares(b)) / degrees as f64;
    variance.is_finite().then_some(variance)
}

/// Measurements on each side with which a test at `level` finds a difference by the factor `ratio` with a
/// probability of 80 %, if their logarithms have this variance.
pub fn needed_measurements(log_variance: f64, ratio: f64, level: f64) -> Option<usize> {
    // The test needs π/3 times as many as one that assumes a normal distribution.
    let both = (quantile(level / 2.0) + quantile(0.2)).powi(2);
    let needed = 2.0 * both * log_variance / ratio.ln().powi(2) * std::f64::consts::FRAC_PI_3;
    (needed.is_finite() && needed < 1e6).then(|| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below 1e6"
        )]
        let needed = needed.ceil() as usize;
        needed.max(least_measurements(level))
    })
}

/// The value that a standard normal variable exceeds with this probability, of at most 0.5.
fn quantile(probability: f64) -> f64 {
    let (mut low, mut high) = (0.0, 40.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if upper_tail(middle) > probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) {
        assert!(
            (a - b).abs() <= 1e-6 * b.abs().max(1e-6),
            "{a} instead of {b}"
        );
    }

    #[test]
    fn median_needs_six_values_for_its_interval() {
        let five = median(&[3.0, 1.0, 2.0, 5.0, 4.0]);
        assert_eq!((five.value, five.interval), (3.0, None));
        let six = median(&[6.0, 1.0, 2.0, 5.0, 4.0, 3.0]);
        assert_eq!((six.value, six.interval), (3.5, Some((1.0, 6.0))));
        // Ranks 2 and 9 of 10: confidence 97.9 %.
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(median(&ten).interval, Some((2.0, 9.0)));
    }

    #[test]
    fn mann_whitney_counts_all_orders() {
        let low = [1.0, 2.0, 3.0, 4.0, 5.0];
        let high = [6.0, 7.0, 8.0, 9.0, 10.0];
        close(mann_whitney(&low, &high), 2.0 / 252.0);
        close(mann_whitney(&high, &low), 2.0 / 252.0);
        close(mann_whitney(&low[..4], &high[..4]), 2.0 / 70.0);
        // U = 1 of 3 and 3: 4 of 20 orders.
        close(mann_whitney(&[1.0, 2.0, 4.0], &[3.0, 5.0, 6.0]), 0.2);
        close(mann_whitney(&low, &low), 1.0);
        // Of the 10 choices of 2 of the ranks 1.5, 1.5, 3, 4.5, 4.5, 2 are as far from the mean.
        close(mann_whitney(&[1.0, 1.0], &[2.0, 3.0, 3.0]), 0.2);
        close(mann_whitney(&[7.0; 5], &[7.0; 5]), 1.0);
    }

    #[test]
    fn many_values_are_approximated() {
        let a: Vec<f64> = (0..40).map(|i| f64::from(i) * 2.0).collect();
        let b: Vec<f64> = (0..40).map(|i| f64::from(i) * 2.0 + 1.0).collect();
        assert!(mann_whitney(&a, &b) > 0.8);
        let shifted: Vec<f64> = b.iter().map(|value| value + 60.0).collect();
        assert!(mann_whitney(&a, &shifted) < 1e-9);
        assert!((upper_tail(1.959_964) - 0.025).abs() < 1e-7);
    }

    #[test]
    fn ratio_has_the_interval_of_the_test() {
        let a = [10.0, 10.2, 9.8, 10.1, 9.9, 10.05];
        let b = a.map(|value| value * 1.05);
        let found = ratio(&a, &b).unwrap();
        assert!((found.value - 1.05).abs() < 0.005, "{found:?}");
        let (low, high) = found.interval.unwrap();
        assert!(
            low > 1.0 && low < 1.05 && high > 1.05 && high < 1.1,
            "{found:?}"
        );
        // 4 and 4 are enough for an interval of 95 % (the smallest p is 0.029), 3 and 3 are not.
        assert!(ratio(&a[..4], &b[..4]).unwrap().interval.is_some());
        assert!(ratio(&a[..3], &b[..3]).unwrap().interval.is_none());
        assert!(ratio(&[0.0], &b).is_none());
        // A median without others: no interval.
        let with_zero = ratio(&[0.0, 10.0, 10.0], &b).unwrap();
        assert!(with_zero.value > 1.0 && with_zero.interval.is_none());
        // The ratio of the medians is 0.94; most ratios of two values are larger than 1.
        let a = [58.7, 58.8, 58.9, 40.0, 41.0, 59.0, 42.0];
        let b = [54.9, 55.0, 54.8, 60.0, 61.0, 54.0, 62.0];
        let found = ratio(&a, &b).unwrap();
        close(found.value, 55.0 / 58.7);
        let (low, high) = found.interval.unwrap();
        assert!(low <= found.value && found.value <= high, "{found:?}");
        // Published: for n = m = 6 the 6th and the 31st of 36 ordered differences (U = 5).
        assert_eq!(rejected(6, 6), Some(5));
        assert_eq!(rejected(10, 10), Some(23));
    }

    #[test]
    fn p_values_are_adjusted() {
        let p = [0.01, 0.04, 0.03, 0.005];
        let adjusted = benjamini_hochberg(&p);
        for (found, expected) in adjusted.iter().zip([0.02, 0.04, 0.04, 0.02]) {
            close(*found, expected);
        }
        for (found, expected) in holm(&p, &[1.0; 4]).iter().zip([0.03, 0.06, 0.06, 0.02]) {
            close(*found, expected);
        }
        // 90 % of the weight: 0.04 / 0.9. The other three then have all of it.
        let weighted = holm(&[0.01, 0.04, 0.03, 0.5], &[1.0, 27.0, 1.0, 1.0]);
        for (found, expected) in weighted.iter().zip([0.044_444_44, 0.044_444_44, 0.06, 0.5]) {
            close(*found, expected);
        }
        assert_eq!(holm(&[0.0, 0.01], &[0.0, 1.0]), [1.0, 1.0]);
        assert_eq!(benjamini_hochberg(&[]), Vec::<f64>::new());
    }

    #[test]
    fn number_of_measurements() {
        close(least_p(5, 5), 2.0 / 252.0);
        close(least_p(1, 1), 1.0);
        close(least_p(3, 1), 0.5);
        assert_eq!(least_measurements(0.05), 4);
        assert_eq!(least_measurements(0.01), 5);
        assert_eq!(least_measurements(0.05 / 30.0), 7);
        close(quantile(0.025), 1.959_964);
        let a = [10.0, 10.2, 9.8, 10.1];
        let variance = log_variance(&a, &a).unwrap();
        let needed = |ratio, level| needed_measurements(variance, ratio, level).unwrap();
        let (few, many) = (needed(1.05, ALPHA), needed(1.005, ALPHA));
        assert!(few <= 6 && many > 50, "{few} {many}");
        assert!(needed(1.005, ALPHA / 10.0) > many);
        assert_eq!(log_variance(&[1.0], &[1.1]), None);
        assert_eq!(log_variance(&[1.0, 0.0], &[1.1]), None);
    }
}
