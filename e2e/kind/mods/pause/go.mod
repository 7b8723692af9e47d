module kvbudget/pause

go 1.24.0
