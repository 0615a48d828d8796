//! Medians and confidence intervals.

/// The median; NaN for no values.
pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (n, middle) if n % 2 == 1 => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

pub fn minimum(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The 95 % confidence interval of the median, for any distribution (sign test): a pair of the
/// values. Fewer than six values are not sufficient and yield minimum and maximum.
pub fn interval(values: &[f64]) -> (f64, f64) {
    let sorted = sorted(values);
    let n = sorted.len();
    if n == 0 {
        return (f64::NAN, f64::NAN);
    }
    // The number of values below the true median has a binomial distribution with p = 1/2.
    let mut outside = 0;
    let (mut probability, mut below) = (0.5_f64.powf(n as f64), 0.0);
    while outside < (n - 1) / 2 {
        below += probability;
        if 2.0 * below > 0.05 {
            break;
        }
        outside += 1;
        probability *= (n - outside + 1) as f64 / outside as f64;
    }
    let outside = outside.saturating_sub(1);
    (sorted[outside], sorted[n - 1 - outside])
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the values are exact")]
mod tests {
    use super::{interval, median, minimum};

    #[test]
    fn medians_of_odd_and_even_numbers_of_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(minimum(&[3.0, 1.0, 2.0]), 1.0);
    }

    #[test]
    fn intervals_match_the_tables_of_the_sign_test() {
        let of = |n: u32| interval(&(1..=n).rev().map(f64::from).collect::<Vec<_>>());
        assert_eq!(of(1), (1.0, 1.0));
        assert_eq!(of(5), (1.0, 5.0));
        assert_eq!(of(6), (1.0, 6.0));
        assert_eq!(of(8), (1.0, 8.0));
        assert_eq!(of(9), (2.0, 8.0));
        assert_eq!(of(15), (4.0, 12.0));
        assert_eq!(of(25), (8.0, 18.0));
    }
}
