# Sourced by the scripts that test.
#
# wanted NAME: whether NAME contains one of $filters, as the test programs' filters do; none = all.
# Words with '-' are no filters.
wanted() {
    count=0
    for part in $filters; do
        case $part in -*) continue ;; esac
        count=$((count + 1))
        case $1 in *"$part"*) return 0 ;; esac
    done
    [ $count -eq 0 ]
}
